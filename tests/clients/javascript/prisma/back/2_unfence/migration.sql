-- [back]
SELECT fence_detach('feed');
SELECT fence_detach('entry');
SELECT fence_detach('reward');
-- [end back]
