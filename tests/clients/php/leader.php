<?php

declare(strict_types=1);

require_once __DIR__ . '/Lease.php';

/** Calls $work again and again while this node leads. Each term has a lease, and so a token and a connection, of its own. */
function lead(array $connection, string $name, string $holder, callable $work, float $ttl = 15): never
{
    while (true) {
        try {
            $lease = Lease::acquire($connection, $name, $holder, $ttl);
            if ($lease !== null) {
                one_term(new PDO(...$connection), $lease, $work);
            }
        } catch (LeaseLost | PDOException $e) {
            fwrite(STDERR, "$name: " . $e->getMessage() . "\n");
        }
        usleep((int) ($ttl / 3 * 1e6));
    }
}

function one_term(PDO $db, Lease $lease, callable $work): void
{
    try {
        while ($lease->held()) {
            try {
                $work($db, $lease);
            } catch (LeaseLost | PDOException $e) {
                throw $e;
            } catch (Exception $e) { // of a source outside: that is no reason to give up
                fwrite(STDERR, "$lease->name: " . $e->getMessage() . "\n");
                sleep(1);
            }
        }
    } finally {
        $lease->release();
    }
}

/** The source is read first, outside of a transaction. What was read under an old token is never written. */
function copy_price(PDO $db, Lease $lease, callable $source): void
{
    $price = $source();
    $lease->transaction($db, fn () => Lease::value($db, 'INSERT INTO price (amount) VALUES (?)', $price));
}
