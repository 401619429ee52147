-- A role that can read the monitor's word and do no more. Once, as superuser in the
-- database pg_auto_failover of the monitor; drop the schema before an upgrade of the
-- extension and make it anew afterwards.
CREATE ROLE pgsteer LOGIN CONNECTION LIMIT 50;
CREATE SCHEMA pgsteer;
CREATE VIEW pgsteer.node AS
  SELECT formationid, groupid, nodeid, nodename, nodehost, nodeport, sysidentifier,
         goalstate::text, reportedstate::text, reportedpgisrunning, reporttime,
         reportedtli, walreporttime, health, healthchecktime,
         statechangetime, candidatepriority, replicationquorum, nodecluster
    FROM pgautofailover.node;
CREATE VIEW pgsteer.formation AS
  SELECT formationid, kind, dbname, number_sync_standbys FROM pgautofailover.formation;
GRANT USAGE ON SCHEMA pgsteer TO pgsteer;
GRANT SELECT ON ALL TABLES IN SCHEMA pgsteer TO pgsteer;
