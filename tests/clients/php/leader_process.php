<?php

// A leader that copies what stands in a file, for recipes.php: leader_process.php FILE.

declare(strict_types=1);

require __DIR__ . '/leader.php';

lead(connection(getenv('DSN')), 'prices', 'node-1', function (PDO $db, Lease $lease) use ($argv) {
    copy_price($db, $lease, function () use ($argv) {
        while (($price = @file_get_contents($argv[1])) === false) {
            usleep(20_000);
        }
        unlink($argv[1]);
        return is_numeric($price) ? (int) $price : throw new RuntimeException($price);
    });
}, 5);
