<?php

declare(strict_types=1);

require_once __DIR__ . '/Lease.php';

// [job]
/** Started on every node, once a day. Who takes over goes on where the last one has committed. */
function daily_reward(array $connection, string $holder, float $ttl = 30, int $chunk = 1000): bool
{
    $lease = Lease::acquire($connection, 'daily-reward', $holder, $ttl);
    if ($lease === null) {
        return false;
    }
    try {
        $db = new PDO(...$connection);
        while (!$lease->transaction($db, fn () => pay_chunk($db, $lease, $chunk))) {
            continue;
        }
        return true;
    } finally {
        $lease->release();
    }
}

/** True when everybody is paid: then nobody is granted the lease before the next day. */
function pay_chunk(PDO $db, Lease $lease, int $chunk): bool
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
    $state = ['day' => $day, 'after' => $last, 'done' => $last === null];
    Lease::value($db, 'SELECT lease_checkpoint(?, ?, ?)', $lease->name, $lease->token, json_encode($state));
    return $last === null
        && Lease::value($db, 'SELECT lease_complete(?, ?, until => ?::date + 1)', $lease->name, $lease->token, $day);
}

/** A day that was left unfinished comes before the server's today. */
function progress(PDO $db): array
{
    $saved = json_decode(Lease::value($db, "SELECT lease_checkpoint('daily-reward')") ?? '{"done": true}', true);
    return $saved['done'] ? [Lease::value($db, 'SELECT current_date'), 0] : [$saved['day'], $saved['after']];
}
// [end job]
