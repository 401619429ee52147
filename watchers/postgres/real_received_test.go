package postgres

import (
	"testing"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// shownReceiver is a receiver that has written further than it has flushed, which a
// real one does too shortly to be met; a search_path puts it before the server's own.
const shownReceiver = `CREATE SCHEMA shown;
CREATE VIEW shown.pg_stat_wal_receiver AS SELECT status, received_tli, latest_end_lsn, sender_host, sender_port, last_msg_receipt_time,
  nullif(current_setting('shown.written', true), '')::pg_lsn AS written_lsn FROM pg_catalog.pg_stat_wal_receiver`

// received: what the receiver has written, as Patroni 4.1 has it, else what was
// flushed.
func (w *world) received(t *testing.T) {
	if err := w.n1.Exec(t.Context(), shownReceiver); err != nil {
		t.Fatal(err)
	}
	if err := w.c.WaitStreaming(t.Context()); err != nil {
		t.Fatal(err)
	}
	conn, err := w.n2.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), "SET search_path = shown, pg_catalog"); err != nil {
		t.Fatal(err)
	}
	for _, written := range []topology.LSN{0x7_0000_0000, 0} {
		var row, flushed string
		shown := ""
		if written > 0 {
			shown = written.String()
		}
		if _, err := conn.Exec(t.Context(), "SELECT set_config('shown.written', $1, false)", shown); err != nil {
			t.Fatal(err)
		}
		if err := conn.QueryRow(t.Context(), rights{}.statement()).Scan(&row); err != nil {
			t.Fatal(err)
		}
		if err := conn.QueryRow(t.Context(), "SELECT pg_last_wal_receive_lsn()::text").Scan(&flushed); err != nil {
			t.Fatal(err)
		}
		want := flushed
		if written > 0 {
			want = shown
		}
		if got, err := parseAnswer([]byte(row)); err != nil || got.ReceiveLSN.String() != want {
			t.Errorf("written %s, flushed %s: received is %s, %v", written, flushed, got.ReceiveLSN, err)
		}
	}
}
