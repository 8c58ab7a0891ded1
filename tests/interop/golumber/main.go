// Command golumber is go-lumber, Elastic's own implementation of Lumberjack, as a peer for tests.
//
//	golumber serve [-host H] [-port P] -out FILE [-hold] [-die N] [-cert FILE [-ca FILE] [-tls 1.2]]
//	golumber send -port P [-n N] [-window N] [-level L] [-inflight N]
//	golumber bench -port P -in FILE [-window N] [-level L] [-inflight N] [-ca FILE]
package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	client "github.com/elastic/go-lumber/client/v2"
	"github.com/elastic/go-lumber/lj"
	"github.com/elastic/go-lumber/server"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) < 2 {
		log.Fatal("golumber serve|send|bench ...")
	}
	switch mode := os.Args[1]; mode {
	case "serve":
		serve(os.Args[2:])
	case "send":
		send(os.Args[2:])
	case "bench":
		bench(os.Args[2:])
	default:
		log.Fatalf("unknown mode %s", mode)
	}
}

func say(value any) {
	if err := json.NewEncoder(os.Stdout).Encode(value); err != nil {
		log.Fatal(err)
	}
}

// serve says its port, and what it received when its input ends: the sizes of the windows, in order.
// An event is acknowledged after it was given to the operating system as a line of FILE.
func serve(arguments []string) {
	flags := flag.NewFlagSet("serve", flag.ExitOnError)
	host := flags.String("host", "127.0.0.1", "address to listen on")
	port := flags.Int("port", 0, "0 picks a free one")
	out := flags.String("out", "", "file for the events, a line each")
	hold := flags.Bool("hold", false, "say the first window, and acknowledge it only after a line of input")
	die := flags.Int("die", 0, "SIGKILL ourselves between the write that makes it N events and its ack")
	cert := flags.String("cert", "", "certificate and key: speak TLS")
	ca := flags.String("ca", "", "ask for a client certificate that this authority has signed")
	version := flags.String("tls", "1.3", "the only version of TLS")
	_ = flags.Parse(arguments)

	file, err := os.Create(*out)
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(*host, strconv.Itoa(*port)))
	if err != nil {
		log.Fatal(err)
	}
	say(map[string]int{"port": listener.Addr().(*net.TCPAddr).Port})
	if *cert != "" {
		listener = tls.NewListener(listener, certified(*cert, *ca, *version))
	}
	s, err := server.NewWithListener(listener, server.V1(true), server.V2(true))
	if err != nil {
		log.Fatal(err)
	}

	lines := make(chan struct{})
	go func() {
		for input := bufio.NewScanner(os.Stdin); input.Scan(); {
			lines <- struct{}{}
		}
		close(lines)
	}()

	windows, total := []int{}, 0
	keep := func(batch *lj.Batch) {
		buffered := bufio.NewWriterSize(file, 1<<20)
		encoder := json.NewEncoder(buffered)
		for _, event := range batch.Events {
			if err := encoder.Encode(event); err != nil {
				log.Fatal(err)
			}
		}
		if err := buffered.Flush(); err != nil {
			log.Fatal(err)
		}
		windows = append(windows, len(batch.Events))
		total += len(batch.Events)
		if *die > 0 && total >= *die {
			if self, err := os.FindProcess(os.Getpid()); err == nil {
				_ = self.Kill()
			}
			select {}
		}
		if *hold && len(windows) == 1 {
			say(map[string]int{"held": len(batch.Events)})
			<-lines
		}
		batch.ACK()
	}
	for {
		select {
		case batch := <-s.ReceiveChan():
			keep(batch)
		case _, more := <-lines:
			if !more {
				say(map[string]any{"events": total, "windows": windows})
				return
			}
		}
	}
}

// certified is what a server with this certificate needs to know of TLS.
func certified(cert, ca, version string) *tls.Config {
	pair, err := tls.LoadX509KeyPair(cert, cert)
	if err != nil {
		log.Fatal(err)
	}
	number := map[string]uint16{"1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13}[version]
	config := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: number, MaxVersion: number}
	if ca != "" {
		text, err := os.ReadFile(ca)
		if err != nil {
			log.Fatal(err)
		}
		config.ClientCAs = x509.NewCertPool()
		config.ClientCAs.AppendCertsFromPEM(text)
		config.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return config
}

// send says how many of N events were acknowledged; its exit code is 0 whatever came of them.
func send(arguments []string) {
	flags := flag.NewFlagSet("send", flag.ExitOnError)
	port := flags.Int("port", 0, "of 127.0.0.1")
	n := flags.Int("n", 1000, "events")
	window := flags.Int("window", 2048, "events in a window")
	level := flags.Int("level", 0, "of compression; 0 is none")
	inflight := flags.Int("inflight", 0, "of the AsyncClient; 0 takes the SyncClient")
	_ = flags.Parse(arguments)

	low, err := client.Dial(fmt.Sprintf("127.0.0.1:%d", *port), client.CompressionLevel(*level))
	if err != nil {
		log.Fatal(err)
	}
	var acked atomic.Int64
	var pending sync.WaitGroup
	var publish func(events []any) error
	if *inflight == 0 {
		c, _ := client.NewSyncClientWith(low) // never an error
		publish = func(events []any) error {
			done, err := c.Send(events)
			acked.Add(int64(done))
			return err
		}
	} else {
		c, _ := client.NewAsyncClientWith(low, *inflight)
		publish = func(events []any) error {
			pending.Add(1)
			return c.Send(func(done uint32, err error) {
				acked.Add(int64(done))
				if err != nil {
					log.Print(err)
				}
				pending.Done()
			}, events)
		}
	}
	for first := 0; first < *n; first += *window {
		events := []any{}
		for i := first; i < min(first+*window, *n); i++ {
			events = append(events, map[string]any{"n": i, "message": fmt.Sprintf("größte Zeile %d <&>", i)})
		}
		if err := publish(events); err != nil {
			log.Print(err)
			break
		}
	}
	pending.Wait()
	_ = low.Close()
	say(map[string]int64{"acked": acked.Load()})
}

// bench sends the lines of FILE, JSON already, as often as each line of its input says, and then says the
// seconds from the first window to the last ack and those of its own CPU. Any failure ends it.
func bench(arguments []string) {
	flags := flag.NewFlagSet("bench", flag.ExitOnError)
	port := flags.Int("port", 0, "of 127.0.0.1")
	in := flags.String("in", "", "file of events, a line each")
	window := flags.Int("window", 2048, "events in a window")
	level := flags.Int("level", 0, "of compression; 0 is none")
	inflight := flags.Int("inflight", 2, "windows")
	ca := flags.String("ca", "", "speak TLS with a server whose certificate this authority has signed")
	_ = flags.Parse(arguments)

	text, err := os.ReadFile(*in)
	if err != nil {
		log.Fatal(err)
	}
	windows := [][]any{}
	events := bytes.Split(bytes.TrimSuffix(text, []byte("\n")), []byte("\n"))
	for first := 0; first < len(events); first += *window {
		some := []any{}
		for _, event := range events[first:min(first+*window, len(events))] {
			some = append(some, event)
		}
		windows = append(windows, some)
	}
	asIs := client.JSONEncoder(func(event any) ([]byte, error) { return event.([]byte), nil })
	dial := net.Dial
	if *ca != "" {
		dial = secured(*ca)
	}
	low, err := client.DialWith(dial, fmt.Sprintf("127.0.0.1:%d", *port), client.CompressionLevel(*level), asIs)
	if err != nil {
		log.Fatal(err)
	}
	c, _ := client.NewAsyncClientWith(low, *inflight) // never an error
	for input := bufio.NewScanner(os.Stdin); input.Scan(); {
		times, err := strconv.Atoi(input.Text())
		if err != nil {
			log.Fatal(err)
		}
		var pending sync.WaitGroup
		before, start := processTime(), time.Now()
		for range times {
			for _, some := range windows {
				pending.Add(1)
				err := c.Send(func(done uint32, err error) {
					if err != nil || int(done) != len(some) {
						log.Fatalf("%d of %d acknowledged: %v", done, len(some), err)
					}
					pending.Done()
				}, some)
				if err != nil {
					log.Fatal(err)
				}
			}
		}
		pending.Wait()
		wall := time.Since(start)
		say(map[string]float64{"wall": wall.Seconds(), "cpu": (processTime() - before).Seconds()})
	}
	_ = low.Close()
}

// secured dials servers whose certificate this authority has signed.
func secured(ca string) func(network, address string) (net.Conn, error) {
	text, err := os.ReadFile(ca)
	if err != nil {
		log.Fatal(err)
	}
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AppendCertsFromPEM(text)
	return func(network, address string) (net.Conn, error) { return tls.Dial(network, address, config) }
}

func processTime() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		log.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
