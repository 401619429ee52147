package xds

import "math/bits"

// roster gives every open stream a number, the lowest that is free, so that the
// index of who asked for a name is a bit for each: with 1,000 streams that have
// all asked for 5,000 names, that is less than a megabyte for the collector to
// look after, and nothing in it is a pointer.
type roster struct {
	seats []*stream // by number; nil: free
	open  int
}

// enter gives a stream its number.
func (r *roster) enter(s *stream) {
	r.open++
	for i, taken := range r.seats {
		if taken == nil {
			s.seat, r.seats[i] = i, s
			return
		}
	}
	s.seat = len(r.seats)
	r.seats = append(r.seats, s)
}

// leave frees a stream's number. It must not be in any set any more.
func (r *roster) leave(s *stream) {
	r.open--
	r.seats[s.seat] = nil
}

// streams are the open ones.
func (r *roster) streams(yield func(*stream) bool) {
	for _, s := range r.seats {
		if s != nil && !yield(s) {
			return
		}
	}
}

// seatSet is a set of numbers of a roster. The zero value is empty.
type seatSet []uint64

func (s *seatSet) add(seat int) {
	for len(*s) <= seat/64 {
		*s = append(*s, 0)
	}
	(*s)[seat/64] |= 1 << (seat % 64)
}

func (s seatSet) has(seat int) bool {
	return seat/64 < len(s) && s[seat/64]&(1<<(seat%64)) != 0
}

// remove takes a number out and reports whether none is left.
func (s seatSet) remove(seat int) (empty bool) {
	if seat/64 < len(s) {
		s[seat/64] &^= 1 << (seat % 64)
	}
	for _, word := range s {
		if word != 0 {
			return false
		}
	}
	return true
}

// all are the numbers in the set.
func (s seatSet) all(yield func(int) bool) {
	for i, word := range s {
		for ; word != 0; word &= word - 1 {
			if !yield(i*64 + bits.TrailingZeros64(word)) {
				return
			}
		}
	}
}
