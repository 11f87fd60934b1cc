<?php

declare(strict_types=1);

require_once __DIR__ . '/Lease.php';

/** All of it in one transaction: no lease. True for who has done it, and false where it was done already. */
function give_gifts(PDO $db): bool
{
    $db->beginTransaction();
    try {
        $day = Lease::value($db, "SELECT (now() AT TIME ZONE 'Europe/Berlin')::date");
        $mine = Lease::value($db, 'SELECT once(?)', "gifts:$day");
        if ($mine) {
            Lease::value($db, 'INSERT INTO gift SELECT id, ? FROM player', $day);
        }
        $db->commit();
        return $mine;
    } catch (Throwable $e) {
        if ($db->inTransaction()) {
            $db->rollBack();
        }
        throw $e;
    }
}
