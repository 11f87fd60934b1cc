SELECT fence_attach('entry', lease_column => 'lease'),
       fence_attach('register', 'register'),
       fence_attach('growing', 'set'),
       fence_attach('reward', 'batch', 'token');
