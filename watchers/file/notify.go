package file

import (
	"sync"

	"github.com/fsnotify/fsnotify"
)

// notices is the system's word of changes in a folder.
type notices struct {
	names <-chan string // what has changed
	again func()        // watch the folder's path anew
	close func()
}

// watchFolder watches a folder and not the file in it: editors and config
// managers replace a file, and a watch stays with the old one. On an error the
// notices are usable and silent.
func watchFolder(folder string) (notices, error) {
	silent := notices{again: func() {}, close: func() {}}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return silent, err
	}
	names, stop := make(chan string), make(chan struct{})
	var pump sync.WaitGroup
	pump.Go(func() { forward(w, names, stop) })
	n := notices{
		names: names,
		// Adding a folder that is watched already changes nothing.
		again: func() { _ = w.Add(folder) },
		close: func() {
			close(stop)
			_ = w.Close()
			pump.Wait()
		},
	}
	return n, w.Add(folder)
}

func forward(w *fsnotify.Watcher, names chan<- string, stop <-chan struct{}) {
	for {
		var name string
		select {
		case <-stop:
			return
		case e, ok := <-w.Events:
			if !ok {
				return
			}
			name = e.Name
		case _, ok := <-w.Errors:
			if !ok {
				return
			}
			name = "..data" // events may have been lost: look
		}
		select {
		case names <- name:
		case <-stop:
			return
		}
	}
}
