<?php

declare(strict_types=1);

require __DIR__ . '/daily_reward.php';

// One line for what happened; what went wrong is on standard error, which cron mails.
try {
    $said = daily_reward(connection(getenv('DSN')), gethostname() . ':' . getmypid());
    echo "daily-reward: $said\n";
} catch (LeaseLost | PDOException $e) {
    fwrite(STDERR, 'daily-reward: ' . $e::class . ': ' . preg_replace('/\s+/', ' ', $e->getMessage()) . "\n");
    exit(1);
}
