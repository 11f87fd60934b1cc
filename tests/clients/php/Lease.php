<?php

declare(strict_types=1);

// [lease]
final class LeaseLost extends RuntimeException
{
}

/** A lease that a process of its own extends, as PHP has no threads, and releases when this one is done or gone. */
final class Lease
{
    private function __construct(
        public readonly string $name,
        public readonly int $token,
        private readonly float $ttl,
        private float $deadline,
        private readonly mixed $heartbeat,
        private readonly array $pipes,
    ) {
    }

    /** Null where another node has it, or the work is done. $connection is what new PDO() takes. */
    public static function acquire(array $connection, string $name, string $holder, float $ttl): ?self
    {
        $deadline = self::now() + $ttl;
        $token = self::value(new PDO(...$connection), 'SELECT lease_acquire(?, ?, ?)', $name, $holder, $ttl);
        if ($token === null) {
            return null;
        }
        $heartbeat = proc_open([PHP_BINARY, __DIR__ . '/heartbeat.php'], [['pipe', 'r'], ['pipe', 'w']], $pipes);
        fwrite($pipes[0], json_encode([$connection, $name, $token, $ttl, $deadline]) . "\n");
        stream_set_blocking($pipes[1], false);
        return new self($name, $token, $ttl, $deadline, $heartbeat, $pipes);
    }

    public function held(): bool
    {
        while (($line = fgets($this->pipes[1])) !== false) {
            $this->deadline = (float) $line;
        }
        return self::now() < $this->deadline;
    }

    /** A transaction that writes under the token. */
    public function transaction(PDO $db, callable $work): mixed
    {
        if (!$this->held()) {
            throw new LeaseLost("lease $this->name with token $this->token is lost");
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
            throw $e;
        }
    }

    public function release(): void
    {
        fclose($this->pipes[0]);
        $give_up = self::now() + $this->ttl;
        while (!feof($this->pipes[1]) && self::now() < $give_up) {
            $this->held();
            usleep(1_000);
        }
        proc_terminate($this->heartbeat);
        proc_close($this->heartbeat);
    }

    public static function value(PDO $db, string $sql, mixed ...$arguments): mixed
    {
        $statement = $db->prepare($sql);
        $statement->execute($arguments);
        return $statement->fetchColumn();
    }

    private static function now(): float
    {
        return hrtime(true) / 1e9;
    }
}
// [end lease]
