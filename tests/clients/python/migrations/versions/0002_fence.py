# [migration]
"""Put the fence of lease reward-all on table reward."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade():
    op.execute("CREATE EXTENSION IF NOT EXISTS lock_ext")
    op.add_column("reward", sa.Column("token", sa.BigInteger))
    # It waits for open writers, and others wait for it: give up soon, and try again.
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("SELECT fence_attach('reward', 'reward-all', 'token')")


def downgrade():
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("SELECT fence_detach('reward')")
    op.drop_column("reward", "token")


# [end migration]
