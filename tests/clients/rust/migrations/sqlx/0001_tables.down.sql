DROP TABLE entry, player;
