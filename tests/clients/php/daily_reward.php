<?php

declare(strict_types=1);

require_once __DIR__ . '/Lease.php';

// A day begins here: also at 23:55 it is the same one before and after midnight.
const ZONE = 'Europe/Berlin';
const STARTS = '00:05';

/** Called on every node every few minutes. Who takes over goes on where the last one has committed. Says what happened. */
function daily_reward(array $connection, string $holder, float $ttl = 30, int $chunk = 1000): string
{
    $lease = Lease::acquire($connection, 'daily-reward', $holder, $ttl);
    $db = new PDO(...$connection);
    if ($lease === null) {
        return Lease::status($db, 'daily-reward');
    }
    try {
        do {
            $day = $lease->transaction($db, fn () => pay_chunk($db, $lease, $chunk));
        } while ($day === null);
        return "$day is done";
    } finally {
        $lease->release();
    }
}

/** The day, when everybody is paid: then nobody is granted the lease before the next one begins. */
function pay_chunk(PDO $db, Lease $lease, int $chunk): ?string
{
    [$day, $after] = progress($db);
    $last = Lease::value(
        $db,
        'WITH paid AS (INSERT INTO reward (player, day, amount)
             SELECT id, ?, 100 FROM player WHERE id > ? ORDER BY id LIMIT ? RETURNING player)
         SELECT max(player) FROM paid',
        $day,
        $after,
        $chunk
    );
    $state = json_encode(['day' => $day, 'after' => $last, 'done' => $last === null, 'by' => $lease->holder]);
    Lease::value($db, 'SELECT lease_checkpoint(?, ?, ?)', $lease->name, $lease->token, $state);
    if ($last !== null) {
        return null;
    }
    $complete = 'SELECT lease_complete(?, ?, until => (?::date + 1 + ?::interval) AT TIME ZONE ?)';
    Lease::value($db, $complete, $lease->name, $lease->token, $day, STARTS, ZONE);
    return $day;
}

/** The day is the database's, and kept in the checkpoint. One that was left unfinished comes first. */
function progress(PDO $db): array
{
    $saved = json_decode(Lease::value($db, "SELECT lease_checkpoint('daily-reward')") ?? '{"done": true}', true);
    $today = Lease::value($db, 'SELECT (now() AT TIME ZONE ? - ?::interval)::date', ZONE, STARTS);
    return $saved['done'] ? [$today, 0] : [$saved['day'], $saved['after']];
}
