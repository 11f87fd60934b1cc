INSERT INTO stamped_plain (v, token) VALUES (1, 1);
