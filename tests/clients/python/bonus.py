import psycopg


def bonus(conninfo=""):
    with psycopg.connect(conninfo) as conn:  # one transaction
        query = "SELECT once('bonus:' || (now() AT TIME ZONE 'Europe/Berlin')::date)"
        if not conn.execute(query).fetchone()[0]:
            return "done already"
        conn.execute(
            "INSERT INTO bonus SELECT (now() AT TIME ZONE 'Europe/Berlin')::date, id, 10 FROM player"
        )
    return "done"


if __name__ == "__main__":
    print(f"bonus: {bonus()}")
