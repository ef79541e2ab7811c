// Package keylock has a mutex for each key.
package keylock

import (
	"context"
	"sync"
)

// Mutex is a mutex for each key. The zero value has all of them free.
type Mutex struct {
	mu   sync.Mutex
	held map[string]chan struct{} // by key, closed when it is free again; guarded by mu
}

// Lock waits until a key is free, or ctx ends, and holds it until unlock.
func (k *Mutex) Lock(ctx context.Context, key string) (unlock func(), err error) {
	for {
		k.mu.Lock()
		busy := k.held[key]
		if busy == nil {
			if k.held == nil {
				k.held = map[string]chan struct{}{}
			}
			free := make(chan struct{})
			k.held[key] = free
			k.mu.Unlock()
			return func() {
				k.mu.Lock()
				delete(k.held, key)
				k.mu.Unlock()
				close(free)
			}, nil
		}
		k.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
