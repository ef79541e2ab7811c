package sprite

import (
	"context"
	"sync"
)

// keyedMutex is a mutex for each key. Its zero value has none locked.
type keyedMutex struct {
	mu     sync.Mutex
	locked map[string]chan struct{} // closed at the unlock
}

// lock locks a key, and fails with the cause of ctx's end.
func (k *keyedMutex) lock(ctx context.Context, key string) (unlock func(), err error) {
	for {
		k.mu.Lock()
		other := k.locked[key]
		if other == nil {
			mine := make(chan struct{})
			if k.locked == nil {
				k.locked = map[string]chan struct{}{}
			}
			k.locked[key] = mine
			k.mu.Unlock()
			return func() {
				k.mu.Lock()
				defer k.mu.Unlock()
				delete(k.locked, key)
				close(mine)
			}, nil
		}
		k.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
