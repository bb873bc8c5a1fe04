// The host guard: keeps the host off page-locked memory that a copy is using.
//
// The pages of a buffer with an asynchronous copy in flight are read-only (the copy reads them) or
// untouchable (the copy writes them) until the host has *synchronised* with that copy, not merely
// until the copy has ended. So "overwritten too early" and "read too early" are found in every
// run. A touch is a page fault; its handler reports it, lifts the protection and lets the host
// go on. System calls do not fault: read(2) into such a buffer fails with EFAULT instead.
#pragma once
#include "race_detector.h"

namespace sim {

struct Block;

void guard_host(const Record& copy);         // runtime lock held
void host_learns(const VectorClock& clock);  // the host synchronised; runtime lock held
void unguard(const Block& block);            // the block is free again; runtime lock held

}  // namespace sim
