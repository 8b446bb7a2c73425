// A program of Go, whose runtime has a handler for every signal: a profile from inside has groups,
// and Go is told of all signals that are not the profile's.
package main

/*
#include <dormouse/dormouse.h>
#include <stdlib.h>
#include <time.h>

struct dormouse_profile *profile;

static enum dormouse_code begin(struct dormouse_error *error)
{
	struct dormouse_profile_spec spec = DORMOUSE_PROFILE_SPEC_INIT;
	spec.hz = 999;
	return dormouse_profile_begin(&spec, &profile, error);
}

static void burn(void)
{
	struct dormouse_entered entered = dormouse_group_enter(dormouse_group_new("c work"));
	struct timespec now, end;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
	do {
		for (volatile int i = 0; i < 10000; i++)
			;
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	} while (now.tv_nsec + (now.tv_sec - end.tv_sec) * 1000000000 < end.tv_nsec + 300000000);
	dormouse_group_leave(entered);
}
*/
import "C"

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"unsafe"
)

var sink int

func burnInGo(end chan struct{}) {
	for {
		select {
		case <-end:
			return
		default:
			for i := 0; i < 100000; i++ {
				sink += i * i
			}
		}
	}
}

func check(is bool, what ...any) {
	if !is {
		fmt.Println(what...)
		os.Exit(1)
	}
}

func main() {
	end := make(chan struct{})
	go burnInGo(end)
	failure := C.struct_dormouse_error{size: C.sizeof_struct_dormouse_error}
	check(C.begin(&failure) == C.DORMOUSE_OK, "begin:", C.GoString(&failure.message[0]))
	C.burn()
	close(end)
	var at unsafe.Pointer
	var length C.size_t
	check(C.dormouse_profile_read(C.profile, &at, &length, nil) == C.DORMOUSE_OK, "read")
	packed, err := gzip.NewReader(bytes.NewReader(C.GoBytes(at, C.int(length))))
	check(err == nil, err)
	read, err := io.ReadAll(packed)
	check(err == nil, err)
	check(bytes.Contains(read, []byte("c work")), "no sample is of the group")

	// Without the profile, all are Go's; the profile's handler stays, and passes them on.
	told := make(chan os.Signal, 1)
	for number := 40; number <= 64; number++ {
		signal.Notify(told, syscall.Signal(number))
		check(syscall.Kill(syscall.Getpid(), syscall.Signal(number)) == nil, "kill")
		check(<-told == syscall.Signal(number), "another signal than", number)
	}
	C.dormouse_profile_end(C.profile)
	fmt.Println("profiled")
}
