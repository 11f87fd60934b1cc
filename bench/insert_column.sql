INSERT INTO stamped (v, token) VALUES (1, 1);
