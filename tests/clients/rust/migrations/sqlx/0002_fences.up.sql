SET LOCAL lock_timeout = '5s'; -- it waits for open writers, and others wait behind it
SELECT fence_attach('player', 'daily-reward');
SELECT fence_attach('entry', 'daily-reward', token_column => 'token');
SELECT fence_attach('price', 'scheduler', token_column => 'token');
