<?php

declare(strict_types=1);

// Extends a lease until its standard input is closed, and says each time how long the lease may be relied on: by the
// monotonic clock, which is the same for all processes of a host, and counted from before the call. A line of the input
// says that the work goes on. Work that has said nothing for longer than the limit hangs, and is not waited for.
[$connection, $name, $token, $ttl, $limit, $deadline] = json_decode(fgets(STDIN), true);
$db = null;
$none = null;
$next = $worked = hrtime(true) / 1e9;

while (($now = hrtime(true) / 1e9) < min($deadline, $worked + $limit)) {
    $input = [STDIN];
    if (stream_select($input, $none, $none, 0, max(0, (int) (($next + $ttl / 3 - $now) * 1e6))) > 0) {
        $done = fread(STDIN, 8192) === '';
        $worked = hrtime(true) / 1e9;
        if (!$done) {
            continue;
        }
    } else {
        $done = false;
    }
    $next = hrtime(true) / 1e9;
    try {
        $db ??= new PDO(...$connection);
        $statement = $db->prepare($done ? 'SELECT lease_release(?, ?)' : 'SELECT lease_extend(?, ?)');
        $statement->execute([$name, $token]);
        if (!$done) {
            $deadline = $statement->fetchColumn() === null ? 0 : $next + $ttl;
            echo $deadline, "\n";
        }
    } catch (PDOException) {
        $db = null; // No answer is no loss: it is tried again until the deadline.
    }
    if ($done) {
        break;
    }
}
