<?php

declare(strict_types=1);

// [heartbeat]
// Extends a lease until its standard input is closed, and says each time how long the lease may be relied on: by the
// monotonic clock, which is the same for all processes of a host, and counted from before the call.
[$connection, $name, $token, $ttl, $deadline] = json_decode(fgets(STDIN), true);
$db = null;
$none = null;

while (hrtime(true) / 1e9 < $deadline) {
    $closed = [STDIN];
    $done = stream_select($closed, $none, $none, 0, (int) ($ttl / 3 * 1e6)) > 0;
    $asked = hrtime(true) / 1e9;
    try {
        $db ??= new PDO(...$connection);
        $statement = $db->prepare($done ? 'SELECT lease_release(?, ?)' : 'SELECT lease_extend(?, ?)');
        $statement->execute([$name, $token]);
        if (!$done) {
            $deadline = $statement->fetchColumn() === null ? 0 : $asked + $ttl;
            echo $deadline, "\n";
        }
    } catch (PDOException) {
        $db = null; // No answer is no loss: it is tried again until the deadline.
    }
    if ($done) {
        break;
    }
}
// [end heartbeat]
