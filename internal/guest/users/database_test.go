package users

import (
	"reflect"
	"testing"

	"github.com/cove-dev/cove/internal/lib/boot"
)

// TestOwn: the sprite's own user always exists, and has the groups that the image names.
func TestOwn(t *testing.T) {
	for _, test := range []struct {
		own  *boot.Account
		user string
		want User
		ok   bool
	}{
		{nil, "sprite", User{"sprite", 1001, 1001, []uint32{1001}, "/home/sprite", "/bin/bash"}, true},
		{&boot.Account{Name: "4242424", UID: 4242424, GID: 7, Groups: []int{9, 7}, Home: "/"}, "4242424", User{"4242424", 4242424, 7, []uint32{7, 9}, "/", ""}, true},
		{&boot.Account{Name: "its-node", UID: 4242424, GID: 7, Home: "/n", Shell: "/bin/sh"}, "its-node", User{"its-node", 4242424, 7, []uint32{7}, "/n", "/bin/sh"}, true},
		{&boot.Account{Name: "its-node", UID: 4242424, GID: 7, Home: "/n"}, "4242424", User{"its-node", 4242424, 7, []uint32{7}, "/n", ""}, true},
		{&boot.Account{Name: "its-node", UID: 4242424}, "sprite-that-is-not", User{}, false},
	} {
		d := &Database{Own: test.own}
		if got, ok := d.Lookup(test.user); ok != test.ok || !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s of %+v: got %+v, %v", test.user, test.own, got, ok)
		}
	}
	d := &Database{Own: &boot.Account{Name: "x", UID: 5, GID: 50, Groups: []int{50}, Shell: "/bin/sh"}}
	in := User{Name: "x", UID: 5, GID: 6, Groups: []uint32{6, 7}, Home: "/h", Shell: "/usr/sbin/nologin"}
	if got := d.amend(in); !reflect.DeepEqual(got, User{"x", 5, 50, []uint32{50}, "/h", "/bin/sh"}) {
		t.Errorf("got %+v", got)
	}
	d.Own.Groups = nil
	if in.Shell = "/bin/zsh"; !reflect.DeepEqual(d.amend(in), in) {
		t.Errorf("got %+v", d.amend(in))
	}
	if in.UID = 8; !reflect.DeepEqual(d.amend(in), in) {
		t.Errorf("another user of the name: got %+v", d.amend(in))
	}
}
