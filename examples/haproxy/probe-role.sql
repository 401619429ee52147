-- Once, on the primary; it reaches the replicas by itself. Each pgsteer holds one
-- session per node and makes a short second login now and then.
CREATE ROLE pgsteer LOGIN CONNECTION LIMIT 10 PASSWORD 'change me' IN ROLE pg_monitor;
