#include "messages/link/ucx/carrier.hpp"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <utility>

#include "messages/base/log.hpp"
#include "messages/link/cluster_secret.hpp"

namespace troupe::messages::ucx {
namespace {

/// The id of the Active Message that says a chunk has been read; the others are wire::message_id.
constexpr unsigned receipt_id = 64;

/// Messages in a second that two processes of a machine pass through the door before they think of
/// UCX: more than heartbeats, and than what they say when they meet.
constexpr unsigned few_messages = 32;

/// Messages that wait in UCX's shared memory, at most: 64, or 256 since UCX 1.16.
constexpr int most_waiting = 256;

bool passes_ucx(wire::message_id id) {
  switch (id) {
    case wire::frame_id:
    case wire::bundle_id:
    case wire::chunk_id:
    case wire::returns_id:
      return true;
    default:
      return false;
  }
}

/// What a process shows so that another can try whether it may read its memory. In an address it
/// stands before UCX's own.
struct sample {
  std::uint64_t at = 0;
  std::array<std::byte, 16> mark = {};
};
static_assert(sizeof(sample) == 24);

const sample& shown_sample() {
  static const sample shown = [] {
    static std::array<std::byte, 16> mark;
    fill_random(mark);
    return sample{reinterpret_cast<std::uintptr_t>(mark.data()), mark};
  }();
  return shown;
}

/// Errors: io_failed, in the system's words.
result<void> read_from(std::uint64_t process, std::uint64_t at, std::span<std::byte> into) {
  while (!into.empty()) {
    const iovec here{into.data(), into.size()};
    const iovec there{reinterpret_cast<void*>(at), into.size()};
    const auto got = ::process_vm_readv(static_cast<pid_t>(process), &here, 1, &there, 1, 0);
    if (got <= 0)
      return fail(errc::io_failed,
                  fmt::format("its memory cannot be read: {}",
                              got < 0 ? std::strerror(errno) : "nothing is there"));
    into = into.subspan(static_cast<std::size_t>(got));
    at += static_cast<std::uint64_t>(got);
  }
  return {};
}

ucp_request_param_t send_params(unsigned flags, ucp_send_nbx_callback_t done, void* told) {
  ucp_request_param_t out{};
  out.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  out.flags = flags;
  out.cb.send = done;
  out.user_data = told;
  return out;
}

}  // namespace

ucx_carrier::~ucx_carrier() {
  is_ending_ = true;
  worker_.reset();
}

std::vector<std::byte> ucx_carrier::address() {
  // Asked for when the handshake is done: from now on UCX may learn of the peer.
  if (!is_shm_ && !worker_) {
    if (auto opened = open_worker(); !opened) {
      whom().broken(opened.error());
      return {};
    }
  }
  const auto shown = std::as_bytes(std::span(&shown_sample(), 1));
  std::vector<std::byte> out(shown.begin(), shown.end());
  if (!worker_) return out;
  const auto own = address_of(worker_.get());
  if (!own) {
    whom().broken(own.error());
    return {};
  }
  out.insert(out.end(), own->begin(), own->end());
  return out;
}

/// Counts what has to go through the door for want of a worker, and makes one when it is much.
void ucx_carrier::note_traffic(wire::message_id id) {
  if (has_tried_ || is_hung_up()) return;
  const auto now = clock::now();
  if (now - recent_since_ >= std::chrono::seconds(1)) {
    recent_since_ = now;
    recent_ = 0;
  }
  if (++recent_ > few_messages || id == wire::chunk_id) offer_worker();
}

/// Makes a worker and tells the peer its address. Without one the door goes on carrying everything.
bool ucx_carrier::offer_worker() {
  has_tried_ = true;
  if (auto opened = open_worker(); !opened) {
    log::warning(fmt::format("what is sent to peer {} passes a socket, which is slower: {}",
                             whom().name(), opened.error().text));
    worker_.reset();
    return false;
  }
  whom().say_address();
  return true;
}

result<void> ucx_carrier::open_worker() {
  auto made = make_worker(context_);
  if (!made) return tl::unexpected(std::move(made.error()));
  worker_ = std::move(*made);
  if (const auto status = ucp_worker_get_efd(worker_.get(), &event_fd_); status != UCS_OK)
    return tl::unexpected(to_error(status, "UCX cannot be waited for"));
  return set_handlers();
}

result<void> ucx_carrier::reach(std::span<const std::byte> address) {
  const bool is_first = !std::exchange(is_known_, true);
  const bool has_sample = address.size() >= sizeof(sample);
  const auto of_ucx = address.subspan(has_sample ? sizeof(sample) : address.size());
  const bool may_lack_ucx = is_shm_ && is_first;
  if (!has_sample || (of_ucx.empty() && !may_lack_ucx))
    return tl::unexpected(error{errc::peer_lost, "UCX has no address of it"});
  if (is_shm_ && is_first) probe(address);
  if (of_ucx.empty()) return {};
  is_told_ = true;
  const bool can = worker_ != nullptr || (is_shm_ && !has_tried_ && offer_worker());
  if (!can && is_shm_) return {};
  return open_endpoint(of_ucx);
}

result<void> ucx_carrier::open_endpoint(std::span<const std::byte> address) {
  if (!worker_) return tl::unexpected(error{errc::peer_lost, "UCX has no worker for it"});
  epoll_event event{};
  // Over shared memory it stays ready until the worker can be armed, which a peer that takes
  // nothing may prevent for long: to be told once is enough.
  event.events = EPOLLIN | (is_shm_ ? EPOLLET : 0U);
  event.data.u64 = where_.tag | worker_tag;
  if (::epoll_ctl(where_.epoll, EPOLL_CTL_ADD, event_fd_, &event) != 0)
    return tl::unexpected(
        error{errc::io_failed, fmt::format("cannot wait for UCX: {}", std::strerror(errno))});
  const std::vector<std::byte> aligned(address.begin(), address.end());
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLER |
                      UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
  params.address = reinterpret_cast<const ucp_address_t*>(aligned.data());
  // With the PEER mode UCX would leave shared memory out.
  params.err_mode = is_shm_ ? UCP_ERR_HANDLING_MODE_NONE : UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {&ucx_carrier::on_failed, this};
  const auto status = ucp_ep_create(worker_.get(), &params, &endpoint_);
  if (status == UCS_OK) return {};
  endpoint_ = nullptr;  // and the worker is not used again: it may know of a dead peer
  return tl::unexpected(to_error(status, "UCX cannot reach it", errc::peer_lost));
}

/// Whether the peer's memory can be read from here, as its sample shows.
void ucx_carrier::probe(std::span<const std::byte> address) {
  sample theirs;
  std::memcpy(&theirs, address.data(), sizeof(theirs));
  process_held_ = process() > 0 ? hold_process(static_cast<pid_t>(process())) : descriptor();
  if (!process_held_) return;
  std::array<std::byte, 16> read;
  reads_ = read_from(process(), theirs.at, read) && read == theirs.mark;
}

bool ucx_carrier::progress_ucx() {
  const bool worked = uses_ucx() && ucp_worker_progress(worker_.get()) > 0;
  if (worked) is_armed_ = false;
  return worked;
}

void ucx_carrier::catch_up() {
  for (int taken = 0; taken < most_waiting && progress_ucx(); ++taken) {
  }
}

bool ucx_carrier::arm() {
  if (!uses_ucx()) return true;
  // Over a network more may have to be armed than before, and nobody is told.
  if (!is_armed_ || !is_shm_) is_armed_ = ucp_worker_arm(worker_.get()) == UCS_OK;
  return is_armed_;
}

void ucx_carrier::on_failed(void* self, ucp_ep_h, ucs_status_t status) {
  static_cast<ucx_carrier*>(self)->note_failure(status);
}

void ucx_carrier::note_failure(ucs_status_t status) {
  if (is_ending_ || std::exchange(failed_, true)) return;
  whom().broken({errc::peer_lost, ucs_status_string(status)});
}

void ucx_carrier::send(sending& what) {
  if (!passes_ucx(what.id)) return door_carrier::send(what);
  if (!uses_ucx()) {
    if (!is_shm_ || failed_) return whom().sent(what, false);
    note_traffic(what.id);
    return door_carrier::send(what);
  }
  if (what.id != wire::chunk_id) return post(what, UCP_AM_SEND_FLAG_EAGER);
  if (!is_shm_) return post(what, UCP_AM_SEND_FLAG_RNDV);
  if (!is_read_) return door_carrier::send(what);
  post_place(what);
}

void ucx_carrier::post(sending& what, unsigned flags) {
  what.with = this;
  const ucp_request_param_t params = send_params(flags, &ucx_carrier::on_sent, &what);
  const auto header = what.head();
  is_armed_ = false;
  posting_ = &what;  // it may be told of from within
  const ucs_status_ptr_t request = ucp_am_send_nbx(endpoint_, what.id, header.data(), header.size(),
                                                   what.data.data(), what.data.size(), &params);
  if (std::exchange(posting_, nullptr) == nullptr) return;  // it was
  if (!UCS_PTR_IS_PTR(request)) return finish_send(what, UCS_PTR_RAW_STATUS(request));
  posted_.insert(&what);
}

void ucx_carrier::on_sent(void* request, ucs_status_t status, void* what) {
  ucp_request_free(request);
  auto* const ended = static_cast<sending*>(what);
  auto* const self = static_cast<ucx_carrier*>(ended->with);
  if (self->is_ending_) return static_cast<void>(++self->told_);
  if (self->posting_ == ended)
    self->posting_ = nullptr;
  else
    self->posted_.erase(ended);
  self->finish_send(*ended, status);
}

void ucx_carrier::finish_send(sending& what, ucs_status_t status) {
  if (status != UCS_OK) note_failure(status);
  whom().sent(what, status == UCS_OK);
}

namespace {

/// For messages whose content UCX copies or need not keep.
void forget(void* request, ucs_status_t, void* held) {
  ucp_request_free(request);
  delete static_cast<std::vector<std::byte>*>(held);
}

}  // namespace

void ucx_carrier::post_copy(unsigned id, std::span<const std::byte> header,
                            std::span<const std::byte> data) {
  auto held = std::make_unique<std::vector<std::byte>>(header.begin(), header.end());
  held->insert(held->end(), data.begin(), data.end());
  const ucp_request_param_t params = send_params(UCP_AM_SEND_FLAG_EAGER, &forget, held.get());
  is_armed_ = false;
  const ucs_status_ptr_t request =
      ucp_am_send_nbx(endpoint_, id, held->data(), header.size(), held->data() + header.size(),
                      data.size(), &params);
  if (UCS_PTR_IS_PTR(request)) static_cast<void>(held.release());
}

/// Tells the peer where the chunk lies; it is sent when the peer has read it.
void ucx_carrier::post_place(sending& what) {
  const chunk_place place{reinterpret_cast<std::uintptr_t>(what.data.data()), next_ticket_++};
  placed_[place.ticket] = &what;
  post_copy(wire::chunk_id, what.head(), std::as_bytes(std::span(&place, 1)));
}

void ucx_carrier::say_receipt(std::uint64_t ticket) {
  if (!uses_ucx()) return;
  post_copy(receipt_id, std::as_bytes(std::span(&ticket, 1)), {});
}

void ucx_carrier::take_receipt(std::span<const std::byte> header) {
  std::uint64_t ticket = 0;
  if (header.size() != sizeof(ticket)) return whom().break_rule("a receipt of another size");
  std::memcpy(&ticket, header.data(), sizeof(ticket));
  const auto read = placed_.extract(ticket);
  if (!read.empty()) whom().sent(*read.mapped(), true);
}

template <unsigned Id>
ucs_status_t ucx_carrier::on_message(void* self, const void* header, std::size_t header_bytes,
                                     void* data, std::size_t bytes,
                                     const ucp_am_recv_param_t* param) {
  auto* const carrier = static_cast<ucx_carrier*>(self);
  if (carrier->is_ending_) return UCS_OK;
  const std::span<const std::byte> head(static_cast<const std::byte*>(header), header_bytes);
  const bool rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  try {
    if constexpr (Id == wire::chunk_id) return carrier->take_chunk(head, data, bytes, rendezvous);
    const std::span<const std::byte> here(static_cast<const std::byte*>(data), bytes);
    if constexpr (Id == receipt_id) {
      carrier->take_receipt(head);
    } else {
      // Data that is still at the sender cannot be read here.
      carrier->whom().take({static_cast<wire::message_id>(Id), head,
                            rendezvous ? std::span<const std::byte>() : here});
    }
  } catch (const std::exception& problem) {  // must not cross UCX
    carrier->fail(problem.what());
  }
  return UCS_OK;
}

template <unsigned Id>
result<void> ucx_carrier::set_handler() {
  return ucx::set_handler(worker_.get(), Id, &ucx_carrier::on_message<Id>, this);
}

result<void> ucx_carrier::set_handlers() {
  result<void> out = set_handler<wire::frame_id>();
  if (out) out = set_handler<wire::bundle_id>();
  if (out) out = set_handler<wire::chunk_id>();
  if (out) out = set_handler<wire::returns_id>();
  if (out) out = set_handler<receipt_id>();
  return out;
}

ucs_status_t ucx_carrier::take_chunk(std::span<const std::byte> header, void* data,
                                     std::size_t bytes, bool rendezvous) {
  if (!is_shm_) {
    if (!rendezvous) return whom().break_rule("a chunk came eagerly"), UCS_OK;
    // UCX tells the sender of a chunk that is not received that it is done.
    return whom().offer(header, data, bytes) ? UCS_INPROGRESS : UCS_OK;
  }
  auto place = std::make_unique<chunk_place>();
  wire::chunk_prefix chunk;
  if (rendezvous || bytes != sizeof(*place) || header.size() != sizeof(chunk))
    return whom().break_rule("a chunk does not say where it lies"), UCS_OK;
  std::memcpy(place.get(), data, sizeof(*place));
  std::memcpy(&chunk, header.data(), sizeof(chunk));
  void* const offered = place.get();
  const std::uint64_t ticket = place->ticket;
  places_[offered] = std::move(place);
  if (whom().offer(header, offered, chunk.bytes)) return UCS_OK;
  places_.erase(offered);
  say_receipt(ticket);
  return UCS_OK;
}

void ucx_carrier::fail(std::string_view why) {
  whom().break_off({errc::io_failed, fmt::format("a message could not be taken in: {}", why)});
}

void ucx_carrier::receive(receiving& what) {
  if (what.offered == nullptr) return door_carrier::receive(what);
  if (is_shm_) {
    const auto place = places_.extract(what.offered);
    return read_memory(what, *place.mapped());
  }
  ucp_request_param_t params{};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  params.memory_type = UCS_MEMORY_TYPE_HOST;
  params.cb.recv_am = &ucx_carrier::on_received;
  what.with = this;
  params.user_data = &what;
  // Where the sender is lost, UCX tells so from within, and gives a request all the same.
  receiving_.insert(&what);
  const ucs_status_ptr_t request =
      ucp_am_recv_data_nbx(worker_.get(), what.offered, what.data, what.bytes, &params);
  if (UCS_PTR_IS_PTR(request)) return;
  receiving_.erase(&what);
  const auto status = UCS_PTR_RAW_STATUS(request);
  if (status != UCS_OK) note_failure(status);
  whom().received(what, status == UCS_OK);
}

void ucx_carrier::read_memory(receiving& what, const chunk_place& from) {
  const auto read = read_from(process(), from.at, {what.data, what.bytes});
  // The number of a process that has ended may be another's by now.
  const bool good = read && !has_ended(process_held_);
  if (good) {
    say_receipt(from.ticket);
  } else {
    whom().broken({errc::peer_lost, read ? "its process has ended" : read.error().text});
  }
  whom().received(what, good);
}

void ucx_carrier::on_received(void* request, ucs_status_t status, std::size_t, void* what) {
  ucp_request_free(request);
  auto* const ended = static_cast<receiving*>(what);
  auto* const self = static_cast<ucx_carrier*>(ended->with);
  if (self->is_ending_) return static_cast<void>(++self->told_);
  self->receiving_.erase(ended);
  if (status != UCS_OK) self->note_failure(status);
  self->whom().received(*ended, status == UCS_OK);
}

void ucx_carrier::drop(void* offered) {
  if (offered == nullptr) return door_carrier::drop(offered);
  if (!is_shm_) {
    if (worker_) ucp_am_data_release(worker_.get(), offered);
    return;
  }
  const auto place = places_.extract(offered);
  if (!place.empty()) say_receipt(place.mapped()->ticket);
}

void ucx_carrier::close_endpoint() {
  if (is_shm_ || endpoint_ == nullptr) return;
  told_ = 0;
  const auto under_way = posted_.size() + receiving_.size();
  ucx::close_endpoint(worker_.get(), endpoint_, [&] { return told_ >= under_way; });
}

/// What the peer left in the worker is not taken any more.
void ucx_carrier::hang_up() {
  is_ending_ = true;
  close_endpoint();
  endpoint_ = nullptr;
  event_fd_ = -1;
  is_armed_ = false;
  worker_.reset();
  is_ending_ = false;
  places_.clear();
  std::vector<sending*> over(posted_.begin(), posted_.end());
  posted_.clear();
  for (const auto& [ticket, what] : std::exchange(placed_, {})) {
    for (const outbox::piece& piece : what->pieces) kept_.push_back(piece.frame);
    over.push_back(what);
  }
  for (sending* const what : over) whom().sent(*what, false);
  for (receiving* const what : std::exchange(receiving_, {})) whom().received(*what, false);
  reads_ = is_read_ = false;
  door_carrier::hang_up();
}

bool ucx_carrier::is_released() {
  if (!kept_.empty() && has_ended(process_held_)) kept_.clear();
  return kept_.empty();
}

}  // namespace troupe::messages::ucx
