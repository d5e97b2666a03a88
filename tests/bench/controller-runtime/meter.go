package main

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"
)

// meter records the duration of each reconcile since its last reset.
type meter struct {
	sync.Mutex
	durations []time.Duration
}

func (m *meter) took(d time.Duration) {
	m.Lock()
	m.durations = append(m.durations, d)
	m.Unlock()
}

func (m *meter) stats() map[string]int64 {
	m.Lock()
	sorted := slices.Clone(m.durations)
	m.Unlock()
	slices.Sort(sorted)
	stats := map[string]int64{"reconciles": int64(len(sorted))}
	if n := len(sorted); n > 0 {
		stats["p50_us"] = sorted[n/2].Microseconds()
		stats["p99_us"] = sorted[n*99/100].Microseconds()
	}
	return stats
}

// serve responds to the driver's queries and executes its commands.
func (m *meter) serve(readyFile string, resync func() error) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /count", func(w http.ResponseWriter, _ *http.Request) {
		m.Lock()
		n := len(m.durations)
		m.Unlock()
		json.NewEncoder(w).Encode(n)
	})
	mux.HandleFunc("GET /stats", func(w http.ResponseWriter, _ *http.Request) {
		json.NewEncoder(w).Encode(m.stats())
	})
	mux.HandleFunc("POST /reset", func(http.ResponseWriter, *http.Request) {
		m.Lock()
		m.durations = nil
		m.Unlock()
	})
	mux.HandleFunc("POST /resync", func(w http.ResponseWriter, _ *http.Request) {
		if err := resync(); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	go http.Serve(listener, mux)
	facts, err := json.Marshal(map[string]string{"admin": "http://" + listener.Addr().String()})
	if err != nil {
		return err
	}
	if err := os.WriteFile(readyFile+".partial", facts, 0o644); err != nil {
		return err
	}
	return os.Rename(readyFile+".partial", readyFile)
}
