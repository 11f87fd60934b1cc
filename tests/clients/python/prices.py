import json
import logging
import signal
import threading
from urllib.request import urlopen

from leader import lead


def read():
    # The timeout is a third of the time to live.
    with urlopen("https://prices.example/today.json", timeout=5) as answer:
        return json.load(answer)


def write(conn, prices):
    query = (
        "INSERT INTO price (item, cents) VALUES (%s, %s)"
        " ON CONFLICT (item) DO UPDATE SET cents = excluded.cents"
    )
    conn.cursor().executemany(query, list(prices.items()))


if __name__ == "__main__":
    logging.basicConfig()
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    lead("prices", read, write, stopping)
