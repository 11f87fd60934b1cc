# [migration]
"""The tables, as they were before anybody thought of a fence."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade():
    op.create_table("player", sa.Column("id", sa.Integer, primary_key=True))
    for table in "reward", "bonus":
        op.create_table(
            table,
            sa.Column("player", sa.Integer, primary_key=True, autoincrement=False),
            sa.Column("amount", sa.Integer, nullable=False),
        )


def downgrade():
    for table in "bonus", "reward", "player":
        op.drop_table(table)


# [end migration]
