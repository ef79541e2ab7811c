package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"log/slog"
	"math/bits"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/guest/signals"
	"github.com/cove-dev/cove/internal/guest/smallfile"
	"github.com/cove-dev/cove/internal/lib/boot"
)

// minProcessors is how many goroutines run at once, at least.
const minProcessors = 3

// Init is the life of a sandbox's first process. It prepares the sandbox as the boot
// configuration on stdin says, and serves the API. It returns when it has been asked to stop,
// by the API or by the end of ctx (SIGTERM), and nothing runs any more.
func Init(ctx context.Context, logger *slog.Logger) error {
	cfg, err := readConfig(os.Stdin)
	if err != nil {
		return fmt.Errorf("read the boot configuration: %w", err)
	}
	if err := forget(0); err != nil {
		return fmt.Errorf("close the boot configuration: %w", err)
	}
	// A fork takes a processor from the runtime until the child's exec. The thread that waits
	// for children takes one for a moment each time. With fewer processors, commands that
	// start at the same time would hold up everything else.
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), minProcessors))
	if err := signals.Leave(); err != nil {
		return fmt.Errorf("leave the signals to their defaults: %w", err)
	}
	if err := withhold(); err != nil {
		return fmt.Errorf("keep the guest apart from what it starts: %w", err)
	}
	if err := showProcessors(cfg.CPUs); err != nil {
		logger.Warn("show the limit of processors", "err", err)
	}
	syscall.Umask(0o022)
	if err := prepare(cfg); err != nil {
		logger.Warn("prepare the sandbox", "err", err) // one without a host name is still one
	}
	ln, err := listen(cfg.Listen)
	if err != nil {
		return err
	}
	s := &Server{
		Token:       cfg.Token,
		Incarnation: cfg.Incarnation,
		Env:         cfg.Env,
		Defaults:    cfg.Defaults,
		Logger:      logger,
		Dir:         boot.Dir,
		CgroupRoot:  "/sys/fs/cgroup",
		PidsMax:     cfg.PidsMax,
		ReapOrphans: true,
	}
	if err := errors.Join(shown{s.Dir}.all(cfg), s.generation.begin(s.Dir)); err != nil {
		logger.Warn("show what those inside may read", "err", err)
	}
	// The output so far is in the host's log of this boot. From here on, root in the sandbox
	// could fill and erase these files of the host.
	if err := forget(1, 2); err != nil {
		return fmt.Errorf("close the boot log: %w", err)
	}
	return s.live(ctx, ln)
}

// showProcessors limits the guest, and so all that it starts, to n processors, if the sandbox
// has more. A sandbox of gVisor has two at least. A program that counts one processor may
// leave out its locks, but a sandbox's threads do run at the same time. Programs that ask how
// many they may use (nproc, and most runtimes) find the limit.
func showProcessors(n int) error {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil || n <= 0 || set.Count() <= n {
		return err
	}
	for cpu := len(set)*bits.UintSize - 1; set.Count() > n; cpu-- {
		set.Clear(cpu)
	}
	if _, _, errno := syscall.AllThreadsSyscall(syscall.SYS_SCHED_SETAFFINITY, 0, unsafe.Sizeof(set), uintptr(unsafe.Pointer(&set))); errno != 0 {
		return errno
	}
	return nil
}

// withheld are the capabilities that processes started by the guest do not have. Nor do their
// descendants: an execve gives root no more than the bounding set. With these, root inside
// could take the guest's place:
//
//   - SYS_PTRACE would read the guest's memory, which has its key, and stop it. To trace
//     one's own processes takes no capability.
//   - NET_ADMIN would lead the guest's port elsewhere, and take its address away. In a
//     network namespace of one's own (unshare --user --net) it is to be had.
//   - NET_RAW would answer for the guest on the link. The sandbox has none to begin with.
var withheld = []uintptr{unix.CAP_SYS_PTRACE, unix.CAP_NET_ADMIN, unix.CAP_NET_RAW}

// withhold drops the capabilities that the guest's children must not have. The guest keeps its
// own, since it must find out which process of any user has a socket.
func withhold() error {
	for _, c := range withheld {
		if _, _, errno := syscall.AllThreadsSyscall(syscall.SYS_PRCTL, syscall.PR_CAPBSET_DROP, c, 0); errno != 0 {
			return errno
		}
	}
	return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) // its own user's processes can't look in either
}

// live serves until the end.
func (s *Server) live(ctx context.Context, ln net.Listener) error {
	web := &http.Server{
		Handler:           s.Handler(),
		ReadHeaderTimeout: time.Minute,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          log.New(io.Discard, "", 0),
	}
	local, endLocal := context.WithCancel(ctx)
	var serving sync.WaitGroup
	defer serving.Wait()
	defer endLocal()
	serving.Go(func() {
		if err := s.ServeLocal(local); err != nil {
			s.Logger.Error("serve the local socket", "err", err)
		}
	})
	s.StartServices() // before anybody asks for one
	served := make(chan error, 1)
	door := s.Door(ln)
	go func() { served <- web.Serve(door) }()
	var err error
	select {
	case err = <-served:
	case <-ctx.Done():
	case <-s.Stopped():
	}
	s.Stop(5 * time.Second)
	killAll()
	limit, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if down := web.Shutdown(limit); down != nil {
		_ = web.Close()
	}
	if err == nil || errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve: %w", err)
}

// killAll ends processes that no session has started, such as those of a
// debugger outside.
func killAll() {
	if os.Getpid() == 1 {
		_ = syscall.Kill(-1, syscall.SIGKILL) // there may be none
	}
}

// maxConfig bounds the boot configuration.
const maxConfig = 4 << 20

func readConfig(r io.Reader) (boot.Config, error) {
	var cfg boot.Config
	data, err := io.ReadAll(io.LimitReader(r, maxConfig+1))
	if err != nil {
		return cfg, err
	}
	if len(data) > maxConfig {
		return cfg, fmt.Errorf("it is longer than %d bytes", maxConfig)
	}
	if err := json.Unmarshal(data, &cfg); err != nil {
		return cfg, err
	}
	if cfg.Token == "" || cfg.Listen == "" {
		return cfg, errors.New("it has no token or no address to listen at")
	}
	return cfg, nil
}

// forget replaces open files by /dev/null.
func forget(fds ...int) error {
	null, err := syscall.Open(os.DevNull, syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	for _, fd := range fds {
		if err := syscall.Dup3(null, fd, 0); err != nil {
			return errors.Join(err, syscall.Close(null))
		}
	}
	return syscall.Close(null)
}

// prepare gives the sandbox its name and the folders that everyone expects.
func prepare(cfg boot.Config) error {
	return errors.Join(
		setHostname(cfg.Hostname),
		setMachineID(cfg.MachineID),
		raiseLoopback(),
		calmTCP(),
		allowTracing(),
		folder("/tmp", 0o1777, 0, 0),
		folder("/dev/shm", 0o1777, 0, 0), // gVisor's is root's alone
		folder("/run", 0o755, 0, 0),
		home(cfg.Defaults),
	)
}

// home makes the folders that commands start in. If an image has its own, they stay unchanged.
func home(own *boot.Defaults) error {
	if own == nil {
		return folder(boot.Home, 0o755, boot.UID, boot.GID)
	}
	var err error
	if a := own.Account; a.Name == boot.User && a.Home != "/" {
		if _, missing := os.Stat(a.Home); missing != nil {
			err = folder(a.Home, 0o755, a.UID, a.GID)
		}
	}
	return errors.Join(err, os.MkdirAll(own.Workdir, 0o755))
}

// allowTracing lets users attach a debugger to any of their own processes, not only to its
// children. Without that, even root would need the capability that nobody has here.
func allowTracing() error {
	err := os.WriteFile("/proc/sys/kernel/yama/ptrace_scope", []byte("0\n"), 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // there is no such limit
	}
	return err
}

// receiveBuffer is the receive buffer of a connection. Half of it is the window, which bounds
// what the gateway has under way.
const receiveBuffer = 2 << 20

// calmTCP turns off two features of gVisor's TCP.
//
// If much is lost at once, RACK resends only two segments in 200 ms, or stops. A checkpoint
// loses all that is under way at that moment.
//
// A receive buffer that grows as it is read can lose the window update that ends a
// window of zero (ModerateRecvBuf looks at the size from before). The sender then waits
// for its probe, 200 ms. So each buffer has its largest size from the beginning.
func calmTCP() error {
	return errors.Join(
		os.WriteFile("/proc/sys/net/ipv4/tcp_recovery", []byte("0\n"), 0),
		os.WriteFile("/proc/sys/net/ipv4/tcp_rmem", fmt.Appendf(nil, "4096 %d %d\n", receiveBuffer, receiveBuffer), 0),
	)
}

func setHostname(name string) error {
	if name == "" {
		return nil
	}
	if now, err := os.Hostname(); err != nil || now != name {
		if err := unix.Sethostname([]byte(name)); err != nil {
			return fmt.Errorf("set the host name: %w", err)
		}
	}
	if err := smallfile.Write("/etc/hostname", name+"\n", 0o644); err != nil {
		return err
	}
	// Without an address for its own name sudo waits, and complains.
	hosts, _ := smallfile.Read("/etc/hosts") // one that can't be read is replaced
	return smallfile.Write("/etc/hosts", withHost(string(hosts), name), 0o644)
}

// hostLine marks the line of /etc/hosts that is ours.
const hostLine = "127.0.1.1\t"

// withHost puts name into a hosts file, in place of an earlier one.
func withHost(hosts, name string) string {
	var b strings.Builder
	for line := range strings.Lines(hosts) {
		if !strings.HasPrefix(line, hostLine) {
			b.WriteString(strings.TrimRight(line, "\n") + "\n")
		}
	}
	return b.String() + hostLine + name + "\n"
}

func setMachineID(id string) error {
	if id == "" {
		return nil
	}
	var err error
	if before, readErr := smallfile.Read("/etc/machine-id"); readErr == nil && len(strings.TrimSpace(string(before))) > 0 && strings.TrimSpace(string(before)) != id {
		err = forgetSecrets() // a fork's disk is another machine's
	}
	return errors.Join(err, smallfile.Write("/etc/machine-id", id+"\n", 0o444))
}

// folder makes a folder, or corrects the rights of the one that is there.
func folder(name string, mode uint32, uid, gid int) error {
	if err := os.MkdirAll(name, 0o755); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Stat(name, &st); err != nil {
		return fmt.Errorf("stat %s: %w", name, err)
	}
	if st.Uid != uint32(uid) || st.Gid != uint32(gid) {
		if err := os.Chown(name, uid, gid); err != nil {
			return err
		}
	}
	if name != boot.Home && st.Mode&0o7777 != mode {
		if err := unix.Chmod(name, mode); err != nil {
			return fmt.Errorf("chmod %s: %w", name, err)
		}
	}
	return nil
}

// raiseLoopback brings lo up, if it is down.
func raiseLoopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("bring up lo: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return fmt.Errorf("bring up lo: %w", err)
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, req); err != nil {
		return fmt.Errorf("bring up lo: %w", err)
	}
	if req.Uint16()&unix.IFF_UP != 0 {
		return nil
	}
	req.SetUint16(req.Uint16() | unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req); err != nil {
		return fmt.Errorf("bring up lo: %w", err)
	}
	return nil
}
