package main

import (
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/platform"
)

// gVisor starts a kernel that it restores: its image does not say whether the kernel
// was paused when it was saved. On the platform of this name, no task runs an
// instruction before the kernel was paused for the first time. So that pause finds all
// tasks where they were saved. After that pause, the platform is the same as systrap. A
// kernel that is never paused never runs.
const pausedPlatform = "systrap-paused"

// registerPaused adds the platform to those of --platform.
func registerPaused() error {
	systrap, err := platform.Lookup("systrap")
	if err == nil {
		platform.Register(pausedPlatform, pausedConstructor{systrap})
	}
	return err
}

type pausedConstructor struct{ platform.Constructor }

func (c pausedConstructor) New(opts platform.Options) (platform.Platform, error) {
	p, err := c.Constructor.New(opts)
	if err != nil {
		return nil, err
	}
	return &pausedUntil{Platform: p, opened: make(chan struct{})}, nil
}

// pausedUntil is a platform whose contexts wait for the kernel's first pause.
type pausedUntil struct {
	platform.Platform

	open   atomic.Bool // the pause has begun
	watch  sync.Once
	opened chan struct{} // closed then
}

func (p *pausedUntil) NewContext(ctx context.Context) platform.Context {
	return &pausedContext{Context: p.Platform.NewContext(ctx), platform: p}
}

// await returns when the kernel is being paused: then its tasks stop before they run.
func (p *pausedUntil) await(k *kernel.Kernel) {
	p.watch.Do(func() {
		go func() {
			for !k.IsPaused() {
				time.Sleep(time.Millisecond)
			}
			p.open.Store(true)
			close(p.opened)
		}()
	})
	<-p.opened
}

type pausedContext struct {
	platform.Context
	platform *pausedUntil
}

func (c *pausedContext) Switch(ctx context.Context, mm platform.MemoryManager, ac *arch.Context64, cpu int32) (*linux.SignalInfo, hostarch.AccessType, error) {
	if !c.platform.open.Load() {
		c.platform.await(kernel.KernelFromContext(ctx))
		return nil, hostarch.NoAccess, platform.ErrContextInterrupt
	}
	return c.Context.Switch(ctx, mm, ac, cpu)
}
