<?php

// PDO.

declare(strict_types=1);

require 'harness.php';
require 'recipes.php';

const DATABASE = 'client_pdo';
$stack = new Stack('pdo', PHP_VERSION);
$admin = fresh_database(DATABASE);
$connection = connection(dsn(DATABASE));
$db = new PDO(...$connection);
$acquire = fn (string $lease, mixed $ttl = '30 s') => value($db, 'SELECT lease_acquire(?, ?, ?)', $lease, 'node-1', $ttl);

function fenced(PDO $db, string $lease, int $token, callable $work): void
{
    $db->beginTransaction();
    try {
        value($db, 'SELECT lease_fence(?, ?)', $lease, $token);
        $work();
        $db->commit();
    } finally {
        if ($db->inTransaction()) {
            $db->rollBack();
        }
    }
}

/** What PDO throws, with its SQLSTATE. */
function refused(string $sqlstate, callable $call): PDOException
{
    $error = error_of(PDOException::class, $call);
    equal([$sqlstate, $sqlstate], [$error->getCode(), $error->errorInfo[0]], $error->getMessage());
    return $error;
}

$admin->exec('CREATE TABLE entry (id bigint PRIMARY KEY, amount int, token bigint)');
$admin->exec("SELECT fence_attach('entry', 'job', 'token')");

$stack->scenario('grant', function () use ($db, $acquire) {
    equal(1, $acquire('natural'), 'an integer');
    equal(null, $acquire('natural'), 'held by another');
    // Parameters go without a type, so that a number is a number of seconds.
    foreach ([30, 30.0, 0.5] as $n => $ttl) {
        equal($n + 2, $acquire("seconds-$ttl-$n", $ttl));
    }
    equal('00:00:00.5', value($db, "SELECT ttl FROM lease_status WHERE name LIKE 'seconds-0.5%'"));
    equal(true, value($db, 'SELECT lease_release(?, ?)', 'natural', 1));

    // In a database of its own, as a floor is never lowered.
    $top = fresh_database('client_pdo_top');
    value($top, 'SELECT lease_raise_token_floor(?)', 2 ** 53 - 12);
    $token = value($top, "SELECT lease_acquire('top', 'node-1', '30 s')");
    equal(2 ** 53 - 11, $token, 'a token near the top');
    check(value($top, 'SELECT lease_extend(?, ?)', 'top', $token) !== null, 'a token near the top is extended');
    $top->exec('CREATE TABLE foreign_token (token bigint)');
    value($top, 'INSERT INTO foreign_token VALUES (?)', PHP_INT_MAX);
    equal(PHP_INT_MAX, value($top, 'SELECT token FROM foreign_token'), 'bigint');
});

$stack->scenario('heartbeat', function () use ($connection, $db, $admin) {
    $granted_until = now() + 1.5;
    $lease = Lease::acquire($connection, 'beat', 'node-1', 1.5);
    value($db, 'SELECT pg_sleep(2.5)');
    check(now() > $granted_until && $lease->held(), 'held after a statement that was longer than the time to live');
    equal(true, value($admin, 'SELECT lease_is_current(?, ?)', 'beat', $lease->token));
    equal(null, Lease::acquire($connection, 'beat', 'node-2', 30), 'held by another');
    take_over($admin, 'beat');
    until_true('the loss is noticed', fn () => !$lease->held());
    error_of(LeaseLost::class, fn () => $lease->transaction($db, fn () => 'work that nobody holds the lease for'));
    $lease->release();
});

$stack->scenario('heartbeat_without_answer', function () use ($connection, $admin) {
    // No answer at all, as from a server that is cut off: the lease's row cannot be written.
    $lease = Lease::acquire($connection, 'deaf', 'node-1', 0.3);
    $admin->exec('BEGIN; LOCK TABLE lock_ext.lease IN ACCESS EXCLUSIVE MODE');
    until_true('the own deadline', fn () => !$lease->held());
    $admin->exec('COMMIT');
    $lease->release();
});

$stack->scenario('release', function () use ($connection, $admin) {
    $lease = Lease::acquire($connection, 'short', 'node-1', 60);
    $lease->release();
    equal('free', value($admin, "SELECT state FROM lease_status WHERE name = 'short'"), 'after release()');
    $lease = Lease::acquire($connection, 'short', 'node-1', 60);
    unset($lease); // as at the end of the program, also of one that was killed
    until_true('the release', fn () => value($admin, "SELECT state FROM lease_status WHERE name = 'short'") === 'free');
});

$stack->scenario('fenced_transaction', function () use ($db, $admin, $acquire) {
    $token = $acquire('job');
    fenced($db, 'job', $token, fn () => value($db, 'INSERT INTO entry (id, amount) VALUES (?, ?)', 1, 100));
    equal($token, value($admin, 'SELECT token FROM entry WHERE id = 1'), 'stamped');
    refused('LX003', fn () => $db->exec('UPDATE entry SET amount = 1'));
});

$stack->scenario('fenced_column', function () use ($db) {
    $token = value($db, "SELECT token FROM lease_status WHERE name = 'job'");
    value($db, 'INSERT INTO entry VALUES (?, ?, ?)', 2, 100, $token);
    equal(1, value($db, 'UPDATE entry SET amount = ?, token = ? WHERE id = 2', 200, $token), 'rows');
    refused('LX003', fn () => $db->exec('UPDATE entry SET amount = 1 WHERE id = 2'));
});

$stack->scenario('refused_write', function () use ($db, $admin) {
    $stale = value($db, "SELECT token FROM lease_status WHERE name = 'job'");
    $token = take_over($admin, 'job');
    $write = fn () => value($db, 'UPDATE entry SET amount = 9, token = ? WHERE id = 2', $stale);
    foreach ([fn () => fenced($db, 'job', $stale, $write), $write] as $refused) {
        $error = refused('LX001', $refused);
        check(str_contains($error->getMessage(), "token $token was granted later"), $error->getMessage());
    }
    equal(200, value($admin, 'SELECT amount FROM entry WHERE id = 2'));
});

$stack->scenario('refused_commit', function () use ($db, $admin, $acquire) {
    value($admin, "SELECT lease_force_release('job')");
    $token = $acquire('job');
    $written = false;
    refused('LX001', function () use ($db, $admin, $token, &$written) {
        $db->beginTransaction();
        value($db, 'SELECT lease_fence(?, ?)', 'job', $token);
        value($db, 'INSERT INTO entry (id, amount) VALUES (3, 100)');
        $written = true;
        take_over($admin, 'job');
        $db->commit();
    });
    check($written, 'it was refused before the commit');
    equal(false, $db->inTransaction(), 'inTransaction after the refused commit');
    equal(0, value($admin, 'SELECT count(*) FROM entry WHERE id = 3'));
});

$stack->scenario('silent_errors', function () use ($admin) {
    // With ERRMODE_SILENT commit() says false at least for a refusal at the commit, but true for a transaction that an earlier refusal has undone.
    $silent = new PDO(dsn(DATABASE), null, null, [PDO::ATTR_ERRMODE => PDO::ERRMODE_SILENT]);
    value($admin, "SELECT lease_force_release('job')");
    $token = value($silent, "SELECT lease_acquire('job', 'node-1', '30 s')");
    $silent->beginTransaction();
    value($silent, 'SELECT lease_fence(?, ?)', 'job', $token);
    $silent->exec('INSERT INTO entry (id, amount) VALUES (31, 100)');
    $token = take_over($admin, 'job');
    equal([false, 'LX001'], [$silent->commit(), $silent->errorInfo()[0]], 'refused at the commit');
    $silent->beginTransaction();
    equal([false, 'LX003'], [$silent->exec('INSERT INTO entry (id, amount) VALUES (32, 100)'), $silent->errorInfo()[0]]);
    equal(true, $silent->commit(), 'commit() after a refused statement');
    equal(0, value($admin, 'SELECT count(*) FROM entry WHERE id IN (31, 32)'));
});

$stack->scenario('migration', function () use ($db, $admin) {
    $fences = fn () => value($admin, "SELECT count(*) FROM fence_status WHERE table_name::text = 'reward' AND hole IS NULL");
    $db->exec(file_get_contents('migration.sql'));
    equal(1, $fences(), 'up');
    refused('LX003', fn () => $db->exec('DELETE FROM reward'));
    $db->exec('DROP TABLE reward, player, gift, price');
    equal(0, $fences(), 'down');
    $db->exec(file_get_contents('migration.sql'));
});

recipes($stack, $connection, $db, $admin);

$stack->scenario('wait_timeout', function () use ($connection, $admin) {
    value($admin, "SELECT lease_acquire('busy', 'other', '60 s')");
    $waiting = new PDO(...$connection);
    $wait = fn (string $wait) => value($waiting, "SELECT lease_acquire('busy', 'node-1', '30 s', wait => ?)", $wait);
    $waiting->exec("SET statement_timeout = '200 ms'");
    refused('57014', fn () => $wait('30 s'));
    $waiting->exec('RESET statement_timeout');
    wait_for_waiters($admin, 'busy', 0);
    equal(null, $wait('100 ms'), 'the wait ran out');
    wait_for_waiters($admin, 'busy', 0);
});

$stack->scenario('lost_connection', function () use ($connection, $admin) {
    value($admin, "SELECT lease_force_release('job')");
    $cut = new PDO(...$connection);
    $token = value($cut, "SELECT lease_acquire('job', 'node-1', '30 s')");
    $pid = value($cut, 'SELECT pg_backend_pid()');
    $error = error_of(PDOException::class, function () use ($cut, $token, $admin, $pid) {
        $cut->beginTransaction();
        value($cut, 'SELECT lease_fence(?, ?)', 'job', $token);
        $cut->exec('INSERT INTO entry (id, amount) VALUES (4, 100)');
        value($admin, 'SELECT pg_terminate_backend(?, 5000)', $pid);
        $cut->exec('INSERT INTO entry (id, amount) VALUES (5, 100)');
    });
    equal('HY000', $error->getCode(), 'the code of a lost connection');
    equal(0, value($admin, 'SELECT count(*) FROM entry WHERE id IN (4, 5)'));
    $cut = new PDO(...$connection);
    fenced($cut, 'job', $token, fn () => $cut->exec('INSERT INTO entry (id, amount) VALUES (4, 100)'));
    equal($token, value($admin, 'SELECT token FROM entry WHERE id = 4'), 'with the same lease');
});

$stack->finish();
