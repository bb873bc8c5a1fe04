// Copies between host and device, between devices, and within one.
//
// As on CUDA: page-locked memory with non_blocking=True returns at once; everything else blocks
// the host; another layout or dtype goes through a temporary.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cstring>

#include "memory.h"
#include "operators.h"
#include "python_seam.h"
#include "settings.h"

namespace sim {
namespace {

using at::Tensor;

void copy_bytes(void* to, const void* from, size_t bytes, Link link, int device,
                bool non_blocking) {
  if (!bytes) return;
  bool to_device = link == Link::kHostToDevice;
  const void* host = to_device ? from : to;
  const void* on_device = to_device ? to : from;
  bool pinned = is_pinned(host), asynchronous = non_blocking && pinned;
  Stream* stream = current_stream(device);
  static const char* const kNames[2][2] = {{"copy d2h pageable", "copy d2h"},
                                           {"copy h2d pageable", "copy h2d"}};
  Work work;
  work.operation = kNames[to_device][pinned];
  work.link = link;
  work.duration_ns = transfer_ns(link, bytes);
  work.accesses = {{{static_cast<const char*>(on_device), bytes}, to_device}};
  if (pinned) {
    work.accesses.push_back({{static_cast<const char*>(host), bytes}, !to_device});
    record_use(host, stream);
  }
  void* target = to_device || pinned ? stream_address(to) : to;
  const void* source = !to_device || pinned ? stream_address(from) : from;
  work.guard_host = asynchronous;
  if (settings().poison_copies != 0 && asynchronous)  // undefined until the transfer ends
    work.at_start = [target, bytes] { std::memset(target, 0xFF, bytes); };
  work.at_end = [target, source, bytes] { std::memcpy(target, source, bytes); };
  enqueue(stream, std::move(work));
  if (!asynchronous) synchronize(stream, pinned || !to_device || !non_blocking);
}

bool plain(const Tensor& t) { return t.is_contiguous() && !t.is_conj() && !t.is_neg(); }

bool same_layout(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg() &&
         a.is_non_overlapping_and_dense() && b.is_non_overlapping_and_dense() &&
         (a.strides() == b.strides() || (a.is_contiguous() && b.is_contiguous()));
}

void copy_whole(const Tensor& to, const Tensor& from, Link link, bool non_blocking) {
  auto device = (link == Link::kHostToDevice ? to : from).device().index();
  copy_bytes(to.mutable_data_ptr(), from.const_data_ptr(), to.numel() * to.element_size(), link,
             device, non_blocking);
}

void copy_between_devices(const Tensor& to, const Tensor& from) {
  // As CUDA: the copy runs on the source's stream, between two barriers.
  Stream* source = current_stream(from.device().index());
  Stream* target = current_stream(to.device().index());
  wait_for_stream(source, target);
  Tensor sent = from.to(to.scalar_type()).contiguous();
  Tensor received = plain(to) ? to : at::empty(to.sizes(), to.options());
  Work work;
  work.operation = "copy peer";
  work.link = Link::kOnDevice;
  work.duration_ns = transfer_ns(Link::kOnDevice, to.numel() * to.element_size());
  work.accesses = {access_to(sent, false), access_to(received, true)};
  work.at_end = [received = stream_view(received), sent = stream_view(sent)] {
    at::AutoDispatchBelowADInplaceOrView guard;
    received.copy_(sent);
  };
  enqueue(source, std::move(work));
  wait_for_stream(target, source);
  if (received.is_same(to)) return;
  c10::DeviceGuard guard(to.device());
  copy_on_device(to, received);
}

void copy_to_device(const Tensor& to, const Tensor& from, bool non_blocking) {
  c10::DeviceGuard guard(to.device());
  if (same_layout(from, to)) return copy_whole(to, from, Link::kHostToDevice, non_blocking);
  Tensor sent = from.to(to.scalar_type()).contiguous().resolve_conj().resolve_neg();
  Tensor received = plain(to) ? to : at::empty(to.sizes(), to.options());
  copy_whole(received, sent, Link::kHostToDevice, non_blocking && sent.is_same(from));
  if (!received.is_same(to)) copy_on_device(to, received);
}

void copy_to_host(const Tensor& to, const Tensor& from, bool non_blocking) {
  c10::DeviceGuard guard(from.device());
  if (same_layout(from, to)) return copy_whole(to, from, Link::kDeviceToHost, non_blocking);
  Tensor sent = at::empty(from.sizes(), from.options().dtype(to.dtype()));
  copy_on_device(sent, from);
  Tensor received = at::empty(to.sizes(), to.options().pinned_memory(false));
  copy_whole(received, sent, Link::kDeviceToHost, false);
  Tensor(to).copy_(received);
}

Tensor copy_from(const Tensor& self, const Tensor& to, bool non_blocking) {
  if (to.numel() == 0) return to;
  SiteScope site;
  Tensor from = self.sizes() == to.sizes() ? self : self.expand_as(to);
  if (!on_device(to)) {
    copy_to_host(to, from, non_blocking);
  } else if (!on_device(from)) {
    copy_to_device(to, from, non_blocking);
  } else {
    c10::DeviceGuard guard(from.device());
    if (from.device() == to.device())
      copy_on_device(to, from);
    else
      copy_between_devices(to, from);
  }
  return to;
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& to) {
  if (to.sizes() != self.sizes()) resize(to, self.sizes());
  return copy_from(self, to, false);
}

}  // namespace

void copy_on_device(const Tensor& to, const Tensor& from) {
  Work work;
  work.operation = "copy d2d";
  work.link = Link::kOnDevice;
  work.duration_ns = transfer_ns(Link::kOnDevice, to.numel() * to.element_size()) +
                     operator_ns(intern("aten::copy_"));
  work.accesses = {access_to(from, false), access_to(to, true)};
  work.at_end = [to = stream_view(to), from = stream_view(from)] {
    at::AutoDispatchBelowADInplaceOrView guard;
    to.copy_(from);
  };
  enqueue(current_stream(to.device().index()), std::move(work));
}

at::Scalar read_scalar(const Tensor& t) {
  SiteScope site;
  Tensor host = at::empty({}, at::TensorOptions().dtype(t.dtype()).device(at::kCPU));
  copy_bytes(host.mutable_data_ptr(), t.const_data_ptr(), t.element_size(), Link::kDeviceToHost,
             t.device().index(), false);
  return host.item();
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
  library.impl("_local_scalar_dense", read_scalar);
}

}  // namespace sim
