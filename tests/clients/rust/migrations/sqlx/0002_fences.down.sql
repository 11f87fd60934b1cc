SELECT fence_detach('price');
SELECT fence_detach('entry');
SELECT fence_detach('player');
