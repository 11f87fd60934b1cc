<?php

// The pg_ functions. They answer an error with false and a warning, so a program has to look at each answer.

declare(strict_types=1);

require 'harness.php';

const DATABASE = 'client_pgsql';
$stack = new Stack('php-pgsql', PHP_VERSION);
$admin = fresh_database(DATABASE);

// [query]
final class QueryFailed extends RuntimeException
{
    public function __construct(public readonly ?string $sqlstate, string $message)
    {
        parent::__construct($message);
    }
}

/** The first value of a query, or an exception: pg_query() would only give false and a warning, also for a refused COMMIT. */
function query(PgSql\Connection $db, string $sql, array $arguments = []): ?string
{
    if (!pg_send_query_params($db, $sql, $arguments)) {
        throw new QueryFailed(null, pg_last_error($db));
    }
    return answer($db);
}

function answer(PgSql\Connection $db): ?string
{
    $result = pg_get_result($db);
    while (pg_get_result($db) !== false) {
        continue;
    }
    if ($result === false || pg_result_error($result) !== '') {
        $sqlstate = $result ? pg_result_error_field($result, PGSQL_DIAG_SQLSTATE) : null;
        throw new QueryFailed($sqlstate ?: null, $result ? pg_result_error($result) : pg_last_error($db));
    }
    return pg_num_rows($result) > 0 ? pg_fetch_result($result, 0, 0) : null;
}
// [end query]

function connect(): PgSql\Connection
{
    return pg_connect('dbname=' . DATABASE, PGSQL_CONNECT_FORCE_NEW);
}

function refused(string $sqlstate, callable $call): void
{
    $error = error_of(QueryFailed::class, $call);
    equal($sqlstate, $error->sqlstate, $error->getMessage());
}

function fenced(PgSql\Connection $db, string $lease, string $token, callable $work): void
{
    query($db, 'BEGIN');
    try {
        query($db, 'SELECT lease_fence($1, $2)', [$lease, $token]);
        $work();
        query($db, 'COMMIT');
    } finally {
        if (pg_transaction_status($db) === PGSQL_TRANSACTION_INERROR) {
            query($db, 'ROLLBACK');
        }
    }
}

$db = connect();
$acquire = fn (string $lease, mixed $ttl = '30 s') => query($db, 'SELECT lease_acquire($1, $2, $3)', [$lease, 'node-1', $ttl]);
$admin->exec('CREATE TABLE entry (id bigint PRIMARY KEY, amount int, token bigint)');
$admin->exec("SELECT fence_attach('entry', 'job', 'token')");

$stack->scenario('grant', function () use ($acquire) {
    // Every value is a string; (int) of it is exact.
    equal('1', $acquire('natural'), 'a string');
    equal(null, $acquire('natural'), 'held by another');
    equal('2', $acquire('seconds', 30), 'a number of seconds');
    fresh_database('client_pgsql_top');
    $top = pg_connect('dbname=client_pgsql_top', PGSQL_CONNECT_FORCE_NEW);
    query($top, 'SELECT lease_raise_token_floor($1)', [2 ** 53 - 12]);
    $token = query($top, "SELECT lease_acquire('top', 'node-1', '30 s')");
    equal(2 ** 53 - 11, (int) $token, 'a token near the top');
    check(query($top, 'SELECT lease_extend($1, $2)', ['top', (int) $token]) !== null, 'a token near the top is extended');
    equal(PHP_INT_MAX, (int) query($top, 'SELECT $1::bigint', [PHP_INT_MAX]), 'bigint');
});

$stack->scenario('heartbeat', function () use ($db, $admin, $acquire) {
    // One process, two connections: the work is sent, and the heartbeat is beaten until its answer is there.
    $ttl = 1.5;
    $own = connect();
    $deadline = now() + $ttl;
    $token = $acquire('beat', $ttl);
    $granted_until = $deadline;
    pg_send_query($db, 'SELECT pg_sleep(2.5)');
    $beats = 0;
    while (pg_connection_busy($db)) {
        $asked = now();
        $deadline = query($own, 'SELECT lease_extend($1, $2)', ['beat', $token]) === null ? 0 : $asked + $ttl;
        $beats++;
        usleep((int) ($ttl / 10 * 1e6));
    }
    answer($db);
    check(now() > $granted_until && now() < $deadline, 'held after a statement that was longer than the time to live');
    check($beats > 2, "$beats extensions beside one statement");
    take_over($admin, 'beat');
    equal(null, query($own, 'SELECT lease_extend($1, $2)', ['beat', $token]), 'lost');
});

$stack->scenario('fenced_transaction', function () use ($db, $admin, $acquire) {
    $token = $acquire('job');
    fenced($db, 'job', $token, fn () => query($db, 'INSERT INTO entry (id, amount) VALUES (1, 100)'));
    equal((int) $token, value($admin, 'SELECT token FROM entry WHERE id = 1'), 'stamped');
    refused('LX003', fn () => query($db, 'UPDATE entry SET amount = 1'));
});

$stack->scenario('fenced_column', function () use ($db) {
    $token = query($db, "SELECT token FROM lease_status WHERE name = 'job'");
    query($db, 'INSERT INTO entry VALUES ($1, $2, $3)', [2, 100, $token]);
    equal('2', query($db, 'UPDATE entry SET amount = $1, token = $2 WHERE id = 2 RETURNING id', [200, $token]));
    refused('LX003', fn () => query($db, 'UPDATE entry SET amount = 1 WHERE id = 2'));
});

$stack->scenario('refused_write', function () use ($db, $admin) {
    $stale = query($db, "SELECT token FROM lease_status WHERE name = 'job'");
    take_over($admin, 'job');
    $write = fn () => query($db, 'UPDATE entry SET amount = 9, token = $1 WHERE id = 2', [$stale]);
    refused('LX001', fn () => fenced($db, 'job', $stale, $write));
    refused('LX001', $write);
    // Without a look at the answer it is a warning.
    equal(false, @pg_query_params($db, 'UPDATE entry SET amount = 9, token = $1 WHERE id = 2', [$stale]), 'pg_query_params');
    equal(200, value($admin, 'SELECT amount FROM entry WHERE id = 2'));
});

$stack->scenario('refused_commit', function () use ($db, $admin, $acquire) {
    value($admin, "SELECT lease_force_release('job')");
    foreach (['query', 'pg_query'] as $commit) {
        $token = $acquire('job');
        query($db, 'BEGIN');
        query($db, 'SELECT lease_fence($1, $2)', ['job', $token]);
        query($db, 'INSERT INTO entry (id, amount) VALUES (3, 100)');
        value($admin, "SELECT lease_force_release('job')");
        if ($commit === 'query') {
            refused('LX001', fn () => query($db, 'COMMIT'));
        } else {
            equal(false, @pg_query($db, 'COMMIT'), 'pg_query');
            check(str_contains(pg_last_error($db), "fencing token $token"), pg_last_error($db));
        }
        equal(PGSQL_TRANSACTION_IDLE, pg_transaction_status($db), 'after the refused commit');
        equal(0, value($admin, 'SELECT count(*) FROM entry WHERE id = 3'));
    }
});

$stack->scenario('once', function () use ($db) {
    $once = fn () => query($db, 'SELECT once($1)', ['payout:2026-11-29']);
    query($db, 'BEGIN');
    equal('t', $once(), 'in a transaction that is rolled back');
    query($db, 'ROLLBACK');
    equal(['t', 'f'], [$once(), $once()]);
});

$stack->scenario('checkpoint', function () use ($db, $admin, $acquire) {
    $token = $acquire('chunks');
    $doomed = connect();
    $save = fn (int $after) => query($doomed, 'SELECT lease_checkpoint($1, $2, $3)', ['chunks', $token, json_encode(['after' => $after])]);
    fenced($doomed, 'chunks', $token, fn () => $save(2));
    query($doomed, 'BEGIN');
    $save(4);
    value($admin, 'SELECT pg_terminate_backend(?, 5000)', pg_get_pid($doomed));
    equal('{"after": 2}', query($db, 'SELECT lease_checkpoint($1)', ['chunks']));
});

$stack->scenario('wait_timeout', function () use ($admin) {
    value($admin, "SELECT lease_acquire('busy', 'other', '60 s')");
    $waiting = connect();
    $wait = "SELECT lease_acquire('busy', 'node-1', '30 s', wait => '30 s')";
    query($waiting, "SET statement_timeout = '200 ms'");
    refused('57014', fn () => query($waiting, $wait));
    query($waiting, 'RESET statement_timeout');
    wait_for_waiters($admin, 'busy', 0);

    pg_send_query($waiting, $wait);
    wait_for_waiters($admin, 'busy', 1);
    check(pg_cancel_query($waiting), 'pg_cancel_query');
    wait_for_waiters($admin, 'busy', 0);
    equal('1', query($waiting, 'SELECT 1'), 'the connection is usable');
});

$stack->scenario('lost_connection', function () use ($admin) {
    value($admin, "SELECT lease_force_release('job')");
    $cut = connect();
    $token = query($cut, "SELECT lease_acquire('job', 'node-1', '30 s')");
    $error = error_of(QueryFailed::class, fn () => fenced($cut, 'job', $token, function () use ($cut, $admin) {
        query($cut, 'INSERT INTO entry (id, amount) VALUES (4, 100)');
        value($admin, 'SELECT pg_terminate_backend(?, 5000)', pg_get_pid($cut));
        query($cut, 'INSERT INTO entry (id, amount) VALUES (5, 100)');
    }));
    equal('57P01', $error->sqlstate, $error->getMessage());
    equal(0, value($admin, 'SELECT count(*) FROM entry WHERE id IN (4, 5)'));
    check(pg_connection_reset($cut), 'pg_connection_reset');
    fenced($cut, 'job', $token, fn () => query($cut, 'INSERT INTO entry (id, amount) VALUES (4, 100)'));
    equal((int) $token, value($admin, 'SELECT token FROM entry WHERE id = 4'), 'with the same lease');
});

$stack->skip('migration', 'the functions have no migration tool');
$stack->finish();
