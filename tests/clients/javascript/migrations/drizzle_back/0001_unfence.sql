-- [back]
SELECT fence_detach('feed');
--> statement-breakpoint
SELECT fence_detach('entry');
--> statement-breakpoint
SELECT fence_detach('reward');
-- [end back]
