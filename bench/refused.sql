SELECT lease_acquire('heartbeat-1', 'bench', '1 h');
