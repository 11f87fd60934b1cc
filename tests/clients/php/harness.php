<?php

// What the PHP stacks share: a line for each scenario, databases of their own, and conditions to wait for.

declare(strict_types=1);

final class Stack
{
    private const NAMES = ['grant', 'heartbeat', 'fenced_transaction', 'fenced_column', 'refused_write', 'refused_commit',
        'once', 'checkpoint', 'wait_timeout', 'lost_connection', 'migration'];

    /** @var list<string> */
    private array $seen = [];
    private bool $failed = false;

    public function __construct(private readonly string $name, private readonly string $version)
    {
    }

    public function scenario(string $name, callable $scenario): void
    {
        try {
            $scenario();
            $this->report('ok', $name);
        } catch (Throwable $e) {
            $this->failed = true;
            $this->report('not ok', $name, $e::class . ': ' . $e->getMessage());
            fwrite(STDERR, $e . "\n");
        }
    }

    public function skip(string $name, string $why): void
    {
        $this->report('skip', $name, $why);
    }

    /** Ends the program: with an error too where a scenario that every stack has was left out. */
    public function finish(): never
    {
        foreach (array_diff(self::NAMES, $this->seen) as $name) {
            $this->failed = true;
            $this->report('not ok', $name, 'it was not run');
        }
        exit($this->failed ? 1 : 0);
    }

    private function report(string $verdict, string $name, string $why = ''): void
    {
        $this->seen[] = $name;
        $why = $why === '' ? '' : ': ' . trim(preg_replace('/\s+/', ' ', $why));
        echo "$verdict $this->name $this->version - $name$why\n";
    }
}

function check(bool $condition, string $what): void
{
    if (!$condition) {
        throw new RuntimeException($what);
    }
}

function equal(mixed $expected, mixed $actual, string $what = 'value'): void
{
    $shown = fn (mixed $value) => var_export($value, true);
    check($expected === $actual, "$what: {$shown($expected)} was expected, this is {$shown($actual)}");
}

/** The exception that the call ends with. */
function error_of(string $class, callable $call): Throwable
{
    try {
        $call();
    } catch (Throwable $e) {
        check($e instanceof $class, "$class was expected, this is " . $e::class . ': ' . $e->getMessage());
        return $e;
    }
    throw new RuntimeException("$class was expected, and nothing was thrown");
}

/** Waits for what another session or the clock is about to bring. */
function until_true(string $what, callable $condition): mixed
{
    $give_up = now() + 20;
    while (!($value = $condition())) {
        check(now() < $give_up, "it never came: $what");
        usleep(10_000);
    }
    return $value;
}

function now(): float
{
    return hrtime(true) / 1e9;
}

function dsn(string $database): string
{
    return sprintf('pgsql:host=%s;port=%s;user=%s;dbname=%s', getenv('PGHOST'), getenv('PGPORT'), getenv('PGUSER'), $database);
}

/** The first column of the first row. */
function value(PDO $db, string $sql, mixed ...$arguments): mixed
{
    $statement = $db->prepare($sql);
    $statement->execute($arguments);
    $value = $statement->columnCount() > 0 ? $statement->fetchColumn() : $statement->rowCount();
    return $value;
}

/** The administrator's connection to a database that is made anew. */
function fresh_database(string $name): PDO
{
    $server = new PDO(dsn('postgres'));
    $server->exec("DROP DATABASE IF EXISTS $name WITH (FORCE)");
    $server->exec("CREATE DATABASE $name");
    $admin = new PDO(dsn($name));
    $admin->exec('CREATE EXTENSION lock_ext');
    return $admin;
}

/** Somebody else is granted the lease now, whoever has it. */
function take_over(PDO $admin, string $lease): int
{
    value($admin, 'SELECT lease_force_release(?)', $lease);
    return value($admin, "SELECT lease_acquire(?, 'successor', '60 s')", $lease);
}

function wait_for_waiters(PDO $admin, string $lease, int $count): void
{
    until_true("$count waiters for $lease", fn () => value($admin, 'SELECT count(*) FROM lease_waiter WHERE name = ?', $lease) === $count);
}
