DROP TABLE gift, price, entry, player;
