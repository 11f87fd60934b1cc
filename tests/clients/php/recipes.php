<?php

// The scenarios of docs/php.md, for PDO.

declare(strict_types=1);

require 'daily_reward.php';
require 'gift.php';

/** A program of this folder, with the test's database: what it prints, and its exit status. */
function program(string ...$arguments): array
{
    $process = proc_open([PHP_BINARY, ...$arguments], [1 => ['pipe', 'w'], 2 => ['redirect', 1]], $pipes, null, ['DSN' => dsn(DATABASE)] + getenv());
    $said = stream_get_contents($pipes[1]);
    return [$said, proc_close($process)];
}

function recipes(Stack $stack, array $connection, PDO $db, PDO $admin): void
{
    $admin->exec('INSERT INTO player SELECT generate_series(1, 5)');
    $state = fn (string $lease) => value($admin, 'SELECT state FROM lease_status WHERE name = ?', $lease);
    $free = fn () => value($admin, "SELECT lease_force_release('daily-reward')");
    $today = fn () => value($admin, 'SELECT (now() AT TIME ZONE ? - ?::interval)::date', ZONE, STARTS);
    $save = fn (int $token, array $saved) => value($db, "SELECT lease_checkpoint('daily-reward', ?, ?)", $token, json_encode($saved));

    $stack->scenario('connection', function () use ($db) {
        equal('5min', value($db, 'SHOW statement_timeout'));
        equal('10s', value($db, 'SHOW client_connection_check_interval'));
    });

    $stack->scenario('checkpoint', function () use ($connection, $db, $admin, $today) {
        // The first node pays two players, and is cut off in the middle of the next two.
        $doomed = new PDO(...$connection);
        $lease = Lease::acquire($connection, 'daily-reward', 'node-1', 30);
        equal(null, $lease->transaction($doomed, fn () => pay_chunk($doomed, $lease, 2)));
        error_of(PDOException::class, fn () => $lease->transaction($doomed, function () use ($doomed, $admin, $lease) {
            pay_chunk($doomed, $lease, 2);
            value($admin, 'SELECT pg_terminate_backend(?, 5000)', value($doomed, 'SELECT pg_backend_pid()'));
        }));
        equal(["daily-reward: node-1 has it\n", 0], program('cron.php'));
        $lease->release();
        equal([$today(), 2], progress($db), 'read back');
        equal($today() . ' is done', daily_reward($connection, 'node-2', 30, 2), 'the second node does the rest');
        equal('1,2,3,4,5', value($db, "SELECT string_agg(player::text, ',' ORDER BY player) FROM reward"), 'each player once');
        [$said, $status] = program('cron.php');
        check(str_starts_with($said, 'daily-reward: done already, until 20') && $status === 0, $said);
    });

    $stack->scenario('catch_up', function () use ($connection, $db, $free, $today, $save) {
        // Yesterday's job was left unfinished: it is brought to its end, and then comes today.
        $free();
        $yesterday = value($db, 'SELECT ?::date - 1', $today());
        $lease = Lease::acquire($connection, 'daily-reward', 'node-1', 30);
        $lease->transaction($db, function () use ($db, $lease, $yesterday, $save) {
            $save($lease->token, ['day' => $yesterday, 'after' => 3, 'done' => false]);
            $db->exec('DELETE FROM reward');
        });
        $lease->release();
        $paid = fn () => value($db, "SELECT string_agg(format('%s on %s', player, day), ',' ORDER BY day, player) FROM reward");
        equal("$yesterday is done", daily_reward($connection, 'node-2'));
        equal("4 on $yesterday,5 on $yesterday", $paid());
        equal(["daily-reward: {$today()} is done\n", 0], program('cron.php'));
        equal(7, value($db, 'SELECT count(*) FROM reward'));
    });

    $stack->scenario('day', function () use ($db, $admin, $today) {
        $db->exec("SET TIME ZONE 'Pacific/Kiritimati'");
        $here = progress($db)[0];
        $db->exec("SET TIME ZONE 'Pacific/Pago_Pago'");
        equal([$today(), $today()], [$here, progress($db)[0]], 'the day, whatever the session\'s time zone is');
        $until = value($admin, "SELECT completed_until AT TIME ZONE ? FROM lease_status WHERE name = 'daily-reward'", ZONE);
        equal(value($admin, "SELECT (?::date + 1 + ?::interval)::text", $today(), STARTS), $until);
        $db->exec('RESET TIME ZONE');
    });

    // Between a write and its COMMIT, with the row that is to be written next.
    $stack->scenario('predecessor_in_the_way', function () use ($connection, $db, $admin, $free, $state, $save) {
        $free();
        $token = value($db, "SELECT lease_acquire('daily-reward', 'node-1', '200 ms')");
        $save($token, ['day' => '2026-11-28', 'after' => 0, 'done' => false]);
        $frozen = new PDO(...$connection);
        $frozen->beginTransaction();
        value($frozen, "SELECT lease_fence('daily-reward', ?)", $token);
        $frozen->exec("INSERT INTO reward VALUES (1, '2026-11-28', 100)");
        until_true('the expiry', fn () => $state('daily-reward') === 'expired');
        $short = $connection;
        $short[0] = str_replace('statement_timeout=5min', 'statement_timeout=5s', $short[0]);
        equal('2026-11-28 is done', daily_reward($short, 'node-2'));
        error_of(PDOException::class, fn () => $frozen->commit());
        equal(5, value($db, "SELECT count(*) FROM reward WHERE day = '2026-11-28'"));
    });

    $stack->scenario('says_that_it_is_lost', function () use ($connection, $db, $admin, $free) {
        $free();
        $lease = Lease::acquire($connection, 'daily-reward', 'node-1', 30);
        $work = function () use ($db, $admin, &$token) {
            $db->exec('INSERT INTO player VALUES (6)'); // a table without a fence
            $token = take_over($admin, 'daily-reward');
        };
        $error = error_of(LeaseLost::class, fn () => $lease->transaction($db, $work));
        check(str_contains($error->getMessage(), "token $token was granted later"), $error->getMessage());
        equal(5, value($db, 'SELECT count(*) FROM player'));
        $lease->release();
        $free();
        $admin->exec('ALTER TABLE reward RENAME TO gone');
        [$said, $status] = program('cron.php');
        check($status === 1 && preg_match("/\\Adaily-reward: PDOException: .*\"reward\" does not exist.*\n\\z/", $said) === 1, $said);
        $admin->exec('ALTER TABLE gone RENAME TO reward');
    });

    // The heartbeat's connection is well and the work's gives no answer: nobody would lead for ever.
    $stack->scenario('work_without_answer', function () use ($connection, $db, $admin, $state) {
        $lease = Lease::acquire($connection, 'hangs', 'node-1', 2, 1);
        value($db, 'SELECT pg_sleep(5)');
        equal('expired', $state('hangs'));
        check(!$lease->held(), 'it is held');
        $lease->release();
        // And with work that says that it goes on.
        $lease = Lease::acquire($connection, 'works', 'node-1', 2, 1);
        for ($n = 0; $n < 30; $n++) {
            value($db, 'SELECT pg_sleep(0.1)');
            check($lease->held(), 'it is not held');
        }
        $lease->release();
        equal('free', $state('works'));
    });

    $stack->scenario('once', function () use ($db, $admin) {
        $once = fn () => value($db, 'SELECT once(?)', 'payout:2026-11-29');
        $db->beginTransaction();
        equal(true, $once(), 'in a transaction that is rolled back');
        $db->rollBack();
        equal([true, false], [$once(), $once()]);
        $admin->exec('ALTER TABLE player RENAME TO gone');
        error_of(PDOException::class, fn () => give_gifts($db));
        $admin->exec('ALTER TABLE gone RENAME TO player');
        equal([true, false, 5], [give_gifts($db), give_gifts($db), value($db, 'SELECT count(*) FROM gift')]);
    });

    $stack->scenario('leader', function () use ($db, $admin) {
        $source = tempnam(sys_get_temp_dir(), 'price');
        $log = "$source.log";
        unlink($source);
        $environment = ['DSN' => dsn(DATABASE)] + getenv();
        $leader = proc_open([PHP_BINARY, 'leader_process.php', $source], [2 => ['file', $log, 'w']], $pipes, null, $environment);
        $says = function (string $what) use ($source) {
            file_put_contents("$source.new", $what);
            rename("$source.new", $source);
            until_true("$what is read", fn () => !file_exists($source));
            clearstatcache();
        };
        $prices = fn () => value($db, "SELECT string_agg(amount::text, ',' ORDER BY id) FROM price");
        try {
            array_map($says, ['1', '503 Service Unavailable', '2']);
            until_true('the price after an error of the source', fn () => $prices() === '1,2');
            equal(1, value($admin, "SELECT grants FROM lease_status WHERE name = 'prices'"), 'grants');
            // What was read under the old token is not written.
            $token = take_over($admin, 'prices');
            $says('3');
            until_true('the loss is said', fn () => preg_match('/could not be extended|not current/', file_get_contents($log)));
            value($admin, "SELECT lease_release('prices', ?)", $token);
            $says('4');
            until_true('the next term', fn () => $prices() === '1,2,4');
            // A connection that is lost costs the term, and not the leader.
            value($admin, "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity
                WHERE datname = current_database() AND query LIKE '%COMMIT%' AND pid <> pg_backend_pid()");
            array_map($says, ['5', '6', '7']);
            until_true('another term', fn () => str_ends_with($prices(), ',7'));
        } finally {
            proc_terminate($leader);
            proc_close($leader);
            array_map(unlink(...), glob("$source*"));
        }
    });
}
