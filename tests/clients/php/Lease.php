<?php

declare(strict_types=1);

/** Stop, and never try again with the same token. */
final class LeaseLost extends RuntimeException
{
}

/** What new PDO() takes. A connection that is dead is noticed within a third of the time to live, and a statement ends. */
function connection(string $dsn, float $ttl = 30): array
{
    $third = max(1, (int) ($ttl / 3));
    $dsn .= ";keepalives_idle=$third;keepalives_interval=1;tcp_user_timeout={$third}000"
        . ";options='-c statement_timeout=5min -c client_connection_check_interval={$third}s'";
    return [$dsn, null, null, [PDO::ATTR_TIMEOUT => $third]];
}

/** A lease that a process of its own extends, as PHP has no threads, and releases when this one is done or gone. */
final class Lease
{
    private function __construct(
        public readonly string $name,
        public readonly int $token,
        public readonly string $holder,
        private readonly float $ttl,
        private float $deadline,
        private readonly mixed $heartbeat,
        private readonly array $pipes,
    ) {
    }

    /**
     * Null where another node has it, or the work is done. Work that calls neither held() nor transaction() for longer than
     * $limit hangs, and is not waited for: the lease expires. $connection is what new PDO() takes.
     */
    public static function acquire(array $connection, string $name, string $holder, float $ttl, ?float $limit = null): ?self
    {
        $db = new PDO(...$connection);
        $deadline = self::now() + $ttl;
        $token = self::value($db, 'SELECT lease_acquire(?, ?, ?)', $name, $holder, $ttl);
        if ($token === null) {
            return null;
        }
        // A predecessor that is frozen in an open transaction cannot commit any more, but keeps its row locks.
        self::value($db, 'SELECT count(*) FROM lease_evict(?, ?)', $name, $token);
        $heartbeat = proc_open([PHP_BINARY, __DIR__ . '/heartbeat.php'], [['pipe', 'r'], ['pipe', 'w']], $pipes);
        fwrite($pipes[0], json_encode([$connection, $name, $token, $ttl, $limit ?? 10 * $ttl, $deadline]) . "\n");
        array_map(fn ($pipe) => stream_set_blocking($pipe, false), $pipes);
        return new self($name, $token, $holder, $ttl, $deadline, $heartbeat, $pipes);
    }

    /** Why null was the answer. */
    public static function status(PDO $db, string $name): string
    {
        return self::value($db, "SELECT CASE WHEN state = 'completed' THEN 'done already, until ' || completed_until
            WHEN state = 'held' THEN holder || ' has it' ELSE 'somebody else has it' END FROM lease_status WHERE name = ?", $name) ?: 'somebody else has it';
    }

    public function held(): bool
    {
        @fwrite($this->pipes[0], "\n"); // The work goes on.
        $this->listen();
        return self::now() < $this->deadline;
    }

    /** A transaction that writes under the token. */
    public function transaction(PDO $db, callable $work): mixed
    {
        if (!$this->held()) {
            throw new LeaseLost("lease $this->name with token $this->token could not be extended");
        }
        $db->beginTransaction();
        try {
            self::value($db, 'SELECT lease_fence(?, ?)', $this->name, $this->token);
            $result = $work($db);
            $db->commit();
            return $result;
        } catch (Throwable $e) {
            if ($db->inTransaction()) {
                $db->rollBack();
            }
            if ($e instanceof PDOException && in_array($e->getCode(), ['LX001', 'LX002'], true)) {
                throw new LeaseLost($e->errorInfo[2], 0, $e); // with the DETAIL
            }
            throw $e;
        }
    }

    public function release(): void
    {
        fclose($this->pipes[0]);
        $give_up = self::now() + $this->ttl;
        while (!feof($this->pipes[1]) && self::now() < $give_up) {
            $this->listen();
            usleep(1_000);
        }
        proc_terminate($this->heartbeat);
        proc_close($this->heartbeat);
    }

    public static function value(PDO $db, string $sql, mixed ...$arguments): mixed
    {
        $statement = $db->prepare($sql);
        $statement->execute($arguments);
        return $statement->columnCount() > 0 ? $statement->fetchColumn() : null;
    }

    private function listen(): void
    {
        while (($line = fgets($this->pipes[1])) !== false) {
            $this->deadline = (float) $line;
        }
    }

    private static function now(): float
    {
        return hrtime(true) / 1e9;
    }
}
