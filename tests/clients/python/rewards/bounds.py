def bounds(ttl):
    """No call waits for much longer than a third of the time to live."""
    third = max(1, round(ttl / 3))
    return {
        "connect_timeout": third,
        "options": f"-c statement_timeout={third}s",
        # The network is gone while something is sent, and while an answer is awaited.
        "tcp_user_timeout": third * 1000,
        "keepalives_idle": third,
        "keepalives_interval": 1,
        "keepalives_count": third,
    }
