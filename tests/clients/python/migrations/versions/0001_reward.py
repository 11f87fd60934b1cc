"""The table, as it was before anybody thought of a fence."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade():
    op.create_table(
        "reward",
        sa.Column("player", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("amount", sa.Integer, nullable=False),
    )


def downgrade():
    op.drop_table("reward")
