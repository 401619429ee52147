"""Asks Patroni's own request handler and writes down what it answers.

    PYTHONPATH=<unpacked Patroni> python3 askpatroni.py <folder>

writes patroni<major>.tsv (state, method, target, status) and patroni<major>.json
(bodies). The handler is the real one; what it asks of the rest of Patroni is
played. The files beside this one are of 3.0.2 (Debian 12) and 4.1.5 (PyPI).
The states are those of the matrix in docs/patroni-api.md.
"""
import datetime
import io
import json
import logging
import os
import sys
import time
from unittest.mock import Mock, patch

import patroni.api as api
from patroni.dcs import Failover, Member
from patroni.utils import cluster_as_json
from patroni.version import __version__ as version

logging.disable(logging.CRITICAL)
MAJOR = int(version.split('.')[0])
REPLAY = 50331648
MB = 1 << 20
HISTORY = [[1, 25623960, 'no recovery target specified']]
REASON = {'max_connections': {'old_value': '100', 'new_value': '50'}}
RESTART = {'schedule': '2030-01-01T00:00:00+00:00', 'postmaster_start_time': '2026-11-30 00:26:07.139004+00:00'}
FAILSAFE = {'n1': 'http://10.0.0.1:8008/patroni', 'n2': 'http://10.0.0.2:8008/patroni'}
START = datetime.datetime(2026, 11, 30, 0, 26, 7, 139004, datetime.timezone.utc)
CUSTOM = {'zone': 'az-1', 'weight': 10, 'fast': True, 'slow': False, 'ratio': 1.4, 'word': 'True', 'text': '1'}


def state(**more):
    """A replica that streams, unless said otherwise. sql None: it cannot be asked."""
    s = dict(lock=False, cluster=True, pause=False, standby=False, sync=None, insync=False, failsafe=False,
             state='running', role='replica', sql='replica', receiver='streaming', restore='', nolb=False,
             latest=REPLAY, optime=REPLAY, tags={}, unlocked=False, members=None, restart=False)
    s.update(more)
    return s


def primary(**more):
    return state(**{**dict(lock=True, role='primary', sql='primary', receiver=None, latest=0), **more})


STATES = {
    'M1': primary(),
    'M2': primary(lock=False),
    'M3': primary(state='stopped', sql=None),
    'M3-crashed': primary(state='crashed', sql=None),
    'M3-starting': primary(state='starting', sql=None),
    'M3-unknown': primary(sql=None),
    'M4': state(lock=True, receiver=None, latest=0),
    'M5': state(members=FAILSAFE),
    'M5-behind': state(optime=REPLAY + 4 * MB, latest=REPLAY + 4 * MB),
    'M5-tags': state(tags=CUSTOM),
    'M5-restart': state(restart=True),
    'M6': state(receiver=None, latest=0),
    'M7': state(receiver=None, latest=0, restore='cp'),
    'M8': state(nolb=True),
    'M9': state(sync='sync', insync=True),
    'M9-async': state(sync='sync'),
    'M9-unseen': state(sync='sync', insync=True),
    'M10': state(sync='sync', insync=True, nolb=True),
    'M11': state(sync='quorum', insync=True),
    'M12': state(state='starting', sql=None),
    'M13': state(sql=None),
    'M14': state(lock=True, standby=True, role='standby_leader'),
    'M14-stopped': state(lock=True, standby=True, role='standby_leader', state='stopped', sql=None),
    'M15': state(standby=True),
    'M16': primary(cluster=False),
    'M16-failsafe': primary(cluster=False, failsafe=True),
    'M17': primary(cluster=False, lock=False),
    'M18': primary(cluster=False, lock=False, pause=True),
    'M19': state(cluster=False),
    'M20': state(cluster=False, latest=0),
    'M21': state(cluster=False, latest=0, failsafe=True),
    'M22': state(cluster=False, standby=True, pause=True, role='standby_leader'),
}

if MAJOR < 4:
    del STATES['M11']  # there is no quorum commit

CHECKS = ['/', '/primary', '/master', '/read-write', '/leader', '/standby-leader', '/standby_leader', '/replica',
          '/read-only', '/read-only-sync', '/read-only-synchronous', '/sync', '/synchronous', '/async', '/asynchronous',
          '/quorum', '/read-only-quorum', '/health', '/readiness', '/patroni']

PATHS = ['/liveness', '/cluster', '/history', '/config', '/metrics', '/failsafe',
         '/nosuch', '/Primary', '/%70rimary', '//primary', '///replica', '/primary/', '/primary/foo', '/xprimaryx', '/replicas',
         '/replica/', '/healthz', '/unhealthy', '/cluster_health', '/sync/', '/async/', '/quorum/', '/read-only-sync/',
         '/replica-leader', '/patroni/x', '/patronix', '/liveness/x', '/livenessx', '/metrics/x', '/../primary',
         'http://elsewhere/primary', '/primary;x', '/async;x', '/primary?', '/replica?nosuch=1']

LAGS = ['0', '1', '-1', '4MB', '4194304', '4194303', '4194304B', '4096kB', '4095kB', '3.9999MB', '4.0MB', '0x400000',
        '017777777', '020000000', '4.194304e6', '99999999999999999999999', '+4MB', '%204%20MB%20', '4+MB', '1GB', '1TB',
        '1M', '1mb', '1KB', '1k', '1PB', 'abc', 'nan', 'inf', '1MBx', '09', '10s', '']

TAGS = ['tag_zone=az-1', 'tag_zone=az-2', 'tag_zone=AZ-1', 'tag_weight=10', 'tag_weight=10.0', 'tag_fast=true', 'tag_fast=True',
        'tag_slow=false', 'tag_ratio=1.4', 'tag_word=True', 'tag_word=true', 'tag_text=1', 'tag_nosuch=1', 'tag_=1',
        'tag_zone=', 'tag_zone=az-1&tag_weight=10', 'tag_zone=az-1&tag_weight=11', 'tag_zone=az-1&tag_zone=az-2', 'TAG_zone=az-2']


def requests():
    for name in STATES:
        for path in CHECKS:
            yield name, 'GET', path
    for name in ('M1', 'M5'):
        for path in PATHS:
            yield name, 'GET', path
        for path in CHECKS + PATHS:
            yield name, 'HEAD', path
            yield name, 'OPTIONS', path
        yield name, 'OPTIONS', '*'
        for method in ('POST', 'PUT', 'PATCH', 'DELETE'):
            yield name, method, '/primary'
    for lag in LAGS:
        for path in ('/replica', '/async', '/read-only', '/read-only-sync', '/readiness', '/health', '/primary'):
            yield 'M5-behind', 'GET', f'{path}?lag={lag}'
    for query in ('lag=1&lag=1GB', 'lag=&lag=1', 'lag', 'LAG=1', 'lag=%zz', 'lag=4MB&nosuch', 'lag=4%4d%42'):
        yield 'M5-behind', 'GET', f'/replica?{query}'
    for mode in ('write', 'apply', 'x', ''):
        yield 'M5-behind', 'GET', f'/readiness?mode={mode}&lag=1MB'
    for query in TAGS:
        for path in ('/replica', '/read-only', '/async', '/health', '/primary', '/readiness'):
            yield 'M5-tags', 'GET', f'{path}?{query}'
    for name in ('M1', 'M5', 'M6', 'M7'):
        for path in ('/replica', '/read-only', '/async', '/primary', '/health'):
            yield name, 'GET', f'{path}?replication_state=streaming'
            yield name, 'GET', f'{path}?replication_state=in+archive+recovery'
    for path in ('/read-only', '/read-only-sync', '/primary', '/leader', '/health'):
        yield 'M1', 'GET', f'{path}?tag_nosuch=1&lag=0'


def row(s):
    """What PostgreSQL answers, in the order of Patroni's statement."""
    standby = s['sql'] == 'replica'
    if not standby:
        senders = [{'usename': 'replicator', 'application_name': 'n2', 'client_addr': '10.0.0.2', 'state': 'streaming',
                    'sync_state': 'async', 'sync_priority': 0}]
        r = [START, 5, 67108864, 0, 0, False, None]
    else:
        senders = None
        r = [START, 0, 0, REPLAY, REPLAY + 96 if s['receiver'] else 0, False, None]
    if MAJOR >= 4:
        r += [s['latest'] or None, s['receiver'], s['restore'], None]
    return [tuple(r + [senders])]


def server(s):
    srv = Mock(http_extra_headers={}, server_header=None)
    p = srv.patroni
    p.version, p.noloadbalance, p.scheduled_restart, p.tags = version, s['nolb'], None, s['tags']
    p.next_run = time.time()
    tags = dict(s['tags'], **({'noloadbalance': True} if s['nolb'] else {}))
    p.ha.get_effective_tags.return_value = tags
    p.ha.is_leader.return_value, p.ha.is_paused.return_value = s['lock'], s['pause']
    p.ha.is_standby_cluster.return_value, p.ha.failsafe_is_active.return_value = s['standby'], s['failsafe']
    p.ha.watchdog.is_healthy = True
    p.logger.queue_size, p.logger.NORMAL_LOG_QUEUE_SIZE = 0, 2
    pg = p.postgresql
    pg.POSTMASTER_START_TIME = pg.TL_LSN = pg.wal_name = pg.lsn_name = pg.wal_flush = ''
    pg.scope, pg.name, pg.sysid, pg.server_version, pg.major_version = 'main', 'n1', '7713754238407433424', 150018, 150000
    pg.pending_restart, pg.pending_restart_reason = s['restart'], REASON if s['restart'] else {}
    if s['restart']:
        p.scheduled_restart = dict(RESTART, schedule=datetime.datetime(2030, 1, 1, tzinfo=datetime.timezone.utc))
    pg.state, pg.role = s['state'], s['role']
    if MAJOR < 4 and pg.role == 'primary':
        pg.role = 'master'
    if MAJOR >= 4:
        pg.state = api.PostgresqlState(s['state'])
    pg.replica_cached_timeline.return_value = 5
    pg.replication_state_from_parameters = lambda leads, receiver, restore: None if leads else (
        'streaming' if receiver == 'streaming' else 'in archive recovery' if restore else None)
    p.dcs.ttl, p.dcs.last_seen, p.dcs.failsafe = 30, 1796039998, s['members']
    c = Mock()
    c.last_lsn = c.status.last_lsn = s['optime']
    c.is_unlocked.return_value, c.leader.timeline = s['unlocked'], 5
    c.is_synchronous_mode.return_value = bool(s['sync'])
    c.sync.members, c.sync.matches.return_value = (['n1'] if s['insync'] else []), s['insync']
    c.history.lines, c.config.data, c.config.modify_version = HISTORY, {'ttl': 30}, 1
    c.members, c.failover = [], None
    p.dcs.cluster = c if s['cluster'] else None
    p.dcs.get_cluster.return_value = c

    def query(*_, **__):
        if s['sql'] is None:
            raise api.psycopg.Error
        return row(s)
    srv.query = query
    return srv


class Config:
    """Stands for patroni.global_config of version 4."""
    def __init__(self, s):
        self.is_standby_cluster, self.is_paused = s['standby'], s['pause']
        self.is_synchronous_mode, self.is_quorum_commit_mode = bool(s['sync']), s['sync'] == 'quorum'
        self.maximum_lag_on_failover = MB

    def from_cluster(self, _):
        return self


def ask(name, method, target):
    s = STATES[name]
    out = io.BytesIO()

    class Socket:
        def makefile(self, *_, **__):
            return io.BytesIO(f'{method} {target} HTTP/1.0\r\n\r\n'.encode())

        def sendall(self, b):
            out.write(b)

        def settimeout(self, _):
            pass

        setsockopt = settimeout

    with patch.object(api.RestApiHandler, 'log_message', Mock()), patch.object(api.RestApiHandler, 'query', lambda h, sql, *a, **k: h.server.query()):
        if MAJOR >= 4:
            with patch.object(api, 'global_config', Config(s)), patch.object(api, 'cluster_as_json', lambda _: {'members': []}):
                api.RestApiHandler(Socket(), ('127.0.0.1', 1), server(s))
        else:
            with patch.object(api, 'cluster_as_json', lambda _: {'members': []}):
                api.RestApiHandler(Socket(), ('127.0.0.1', 1), server(s))
    head, _, body = out.getvalue().partition(b'\r\n\r\n')
    return int(head.split()[1]), body.decode()


def member(name, number, **data):
    data.update(conn_url=f'postgres://10.0.0.{number}:5432/postgres', api_url=f'http://10.0.0.{number}:8008/patroni', version=version)
    return Member.from_node(1, name, None, json.dumps(data))


def cluster():
    """The body of /cluster: n1 leads, n2 is its synchronous standby, n3 lags, n4 starts; restarts and a switchover are ahead."""
    s = state(sync='sync')
    c = server(s).patroni.dcs.cluster
    c.leader.name, c.last_lsn, c.status.last_lsn = 'n1', REPLAY + MB, REPLAY + MB
    c.sync.members, c.sync.matches = ['n2'], lambda name: name == 'n2'
    c.is_paused.return_value = False
    streaming = {'replication_state': 'streaming'} if MAJOR >= 4 else {}
    c.members = [
        member('n1', 1, role='primary', state='running', timeline=5, xlog_location=REPLAY + MB, tags={'zone': 'az-1'}),
        member('n2', 2, role='replica', state='running', timeline=5, xlog_location=REPLAY + MB, receive_lsn=REPLAY + MB,
               replay_lsn=REPLAY + MB, **streaming),
        member('n3', 3, role='replica', state='running', timeline=5, xlog_location=REPLAY + 96, receive_lsn=REPLAY + 96,
               replay_lsn=REPLAY, tags={'noloadbalance': True}, pending_restart=True, scheduled_restart=RESTART, **streaming),
        member('n4', 4, role='replica', state='starting'),
    ]
    if MAJOR >= 4:
        c.members[2].data['pending_restart_reason'] = REASON
    c.failover = Failover.from_node(1, json.dumps({'leader': 'n1', 'member': 'n2', 'scheduled_at': '2030-01-01T00:00:00+00:00'}))
    if MAJOR < 4:
        return cluster_as_json(c)
    with patch('patroni.global_config', Config(s)):
        return dict(cluster_as_json(c), scope='main')


def main(folder):
    bodies = {}
    with open(os.path.join(folder, f'patroni{MAJOR}.tsv'), 'w') as f:
        f.write(f'# Patroni {version}\n')
        for name, method, target in requests():
            code, body = ask(name, method, target)
            f.write(f'{name}\t{method}\t{target}\t{code}\n')
            if method == 'GET' and target == '/patroni':
                bodies[name] = json.loads(body)
            if name == 'M5' and method == 'GET' and target in ('/history', '/config', '/failsafe'):
                bodies[target[1:]] = json.loads(body)
    bodies['cluster'] = cluster()
    with open(os.path.join(folder, f'patroni{MAJOR}.json'), 'w') as f:
        json.dump({k: bodies[k] for k in bodies if k in ('cluster', 'history', 'config', 'failsafe', 'M1', 'M3', 'M4', 'M5', 'M5-restart', 'M7', 'M8', 'M9', 'M11', 'M12', 'M14', 'M16', 'M16-failsafe', 'M18')}, f, indent=1, sort_keys=True)
        f.write('\n')


main(sys.argv[1])
