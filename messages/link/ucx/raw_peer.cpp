#include "messages/link/ucx/raw_peer.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <optional>
#include <sstream>
#include <thread>

#include "messages/link/ucx/handles.hpp"

namespace troupe::messages::ucx {
namespace {

using namespace std::chrono_literals;
using clock = std::chrono::steady_clock;

enum message : unsigned { ping = 1, block = 2, leave = 3 };

constexpr auto patience = 5s;
constexpr auto farewell = 1s;
constexpr int blocks_in_flight = 4;
constexpr unsigned turns_a_yield = 64;

/// "#  lane[0]:  2:posix/memory md[1] ..": what stands behind the number.
std::string transports_in(const std::string& description) {
  std::istringstream lines(description);
  std::vector<std::string> found;
  for (std::string line; std::getline(lines, line);) {
    const auto lane = line.find("lane[");
    if (lane == std::string::npos) continue;
    std::istringstream words(line.substr(lane));
    std::string place;
    std::string name;
    words >> place >> name;
    name.erase(0, name.find(':') + 1);
    name.erase(std::min(name.find('.'), name.size()));
    if (std::find(found.begin(), found.end(), name) == found.end()) found.push_back(name);
  }
  std::string text;
  for (const auto& each : found) text += (text.empty() ? "" : ", ") + each;
  return text;
}

}  // namespace

struct raw_peer::state {
  std::unique_ptr<library> of;
  ucx::worker worker;
  std::vector<std::byte> own_address;
  ucp_err_handling_mode_t mode = UCP_ERR_HANDLING_MODE_NONE;
  ucp_ep_h endpoint = nullptr;
  std::vector<std::vector<std::byte>> buffers;
  std::vector<std::byte> data;
  std::uint64_t pushed = 0;            // what a ping carries: blocks sent before it
  std::uint64_t answered = 0;          // pings of ours
  std::uint64_t started = 0;           // receives of blocks
  std::uint64_t taken = 0;             // blocks that have come whole
  std::optional<std::uint64_t> asked;  // a ping waits until so many blocks are here
  int in_flight = 0;                   // sends, and receives of blocks
  bool is_server = false;
  bool is_ending = false;
  bool left = false;
  std::optional<error> failure;

  void note(ucs_status_t status, const char* what) {
    if (!failure) failure = to_error(status, what, errc::peer_lost);
  }

  template <void (state::*Take)(void*, std::size_t, bool)>
  result<void> handle(message id) {
    const auto take = [](void* self, const void*, std::size_t, void* bytes, std::size_t size,
                         const ucp_am_recv_param_t* about) {
      if (static_cast<state*>(self)->is_ending) return UCS_OK;
      const bool rendezvous = (about->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
      (static_cast<state*>(self)->*Take)(bytes, size, rendezvous);
      return rendezvous ? UCS_INPROGRESS : UCS_OK;
    };
    return set_handler(worker.get(), id, take, this);
  }

  void take_ping(void* bytes, std::size_t size, bool) {
    if (!is_server) {
      ++answered;
      return;
    }
    std::uint64_t before = 0;
    std::memcpy(&before, bytes, std::min(size, sizeof before));
    asked = before;
    answer_if_due();
  }

  void answer_if_due() {
    if (!asked || taken < *asked || is_ending) return;
    asked.reset();
    send(ping, &pushed, sizeof pushed);
  }

  void take_block(void* bytes, std::size_t size, bool rendezvous) {
    buffers.resize(blocks_in_flight);
    auto& buffer = buffers[started++ % blocks_in_flight];
    buffer.resize(std::max(buffer.size(), size));
    if (!rendezvous) {
      std::memcpy(buffer.data(), bytes, size);
      return finish_block();
    }
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    params.user_data = this;
    params.cb.recv_am = [](void* request, ucs_status_t status, std::size_t, void* self) {
      ucp_request_free(request);
      static_cast<state*>(self)->received(status);
    };
    ++in_flight;
    const auto request = ucp_am_recv_data_nbx(worker.get(), bytes, buffer.data(), size, &params);
    if (!UCS_PTR_IS_PTR(request)) received(UCS_PTR_RAW_STATUS(request));
  }

  void received(ucs_status_t status) {
    --in_flight;
    if (status != UCS_OK) return note(status, "UCX receives nothing");
    finish_block();
  }

  void finish_block() {
    ++taken;
    answer_if_due();
  }

  void take_leave(void*, std::size_t, bool) { left = true; }

  void send(message id, const void* bytes, std::size_t size) {
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    params.user_data = this;
    params.cb.send = [](void* request, ucs_status_t status, void* self) {
      ucp_request_free(request);
      static_cast<state*>(self)->sent(status);
    };
    ++in_flight;
    const auto request = ucp_am_send_nbx(endpoint, id, nullptr, 0, bytes, size, &params);
    if (!UCS_PTR_IS_PTR(request)) sent(UCS_PTR_RAW_STATUS(request));
  }

  void sent(ucs_status_t status) {
    --in_flight;
    if (status != UCS_OK) note(status, "UCX sends nothing");
  }

  /// Polls until `done`. Errors: timed_out; those of the endpoint.
  template <class Done>
  result<void> wait(const Done& done, clock::duration limit = patience) {
    const auto end = clock::now() + limit;
    for (unsigned turn = 1; !done(); ++turn) {
      ucp_worker_progress(worker.get());
      if (failure) return tl::unexpected(*failure);
      if (turn % turns_a_yield == 0) std::this_thread::yield();  // the other may share this core
      if (turn % 1024 == 0 && clock::now() > end)
        return fail(errc::timed_out, "UCX brought no answer within 5 s");
    }
    return {};
  }
};

raw_peer::raw_peer(std::unique_ptr<state> of) : state_(std::move(of)) {}

raw_peer::~raw_peer() {
  auto& all = *state_;
  const auto is_over = [&all] { return all.in_flight == 0; };
  if (all.endpoint != nullptr && !all.failure) {
    if (!all.is_server) all.send(leave, nullptr, 0);
    // Nothing should be under way when the worker goes.
    [[maybe_unused]] const auto said = all.wait(is_over, farewell);
  }
  all.is_ending = true;
  if (all.endpoint != nullptr && all.mode == UCP_ERR_HANDLING_MODE_PEER)
    close_endpoint(all.worker.get(), all.endpoint, is_over);
  all.worker.reset();  // before what its callbacks write
}

result<std::unique_ptr<raw_peer>> raw_peer::make(link_options options) {
  auto own = std::make_unique<state>();
  if (options.transport == link_transport::shm) {
    options.settings.emplace_back("TLS", "posix,cma");
  } else {
    own->mode = UCP_ERR_HANDLING_MODE_PEER;
  }
  auto opened = library::open(options);
  if (!opened) return tl::unexpected(opened.error());
  own->of = std::move(*opened);
  auto made = make_worker(own->of->context());
  if (!made) return tl::unexpected(made.error());
  own->worker = std::move(*made);
  for (const auto& handled :
       {own->handle<&state::take_ping>(ping), own->handle<&state::take_block>(block),
        own->handle<&state::take_leave>(leave)})
    if (!handled) return tl::unexpected(handled.error());
  auto address = address_of(own->worker.get());
  if (!address) return tl::unexpected(address.error());
  own->own_address = std::move(*address);
  return std::unique_ptr<raw_peer>(new raw_peer(std::move(own)));
}

const std::vector<std::byte>& raw_peer::address() const noexcept {
  return state_->own_address;
}

result<void> raw_peer::reach(std::span<const std::byte> address) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLER |
                      UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = state_->mode;
  params.err_handler = {[](void* self, ucp_ep_h, ucs_status_t status) {
                          static_cast<state*>(self)->note(status, "UCX has lost the other process");
                        },
                        state_.get()};
  const auto status = ucp_ep_create(state_->worker.get(), &params, &state_->endpoint);
  if (status == UCS_OK) return {};
  state_->endpoint = nullptr;
  return tl::unexpected(
      to_error(status, "UCX cannot reach the other process", errc::address_unavailable));
}

std::string raw_peer::transports() const {
  return transports_in(printed([this](std::FILE* to) { ucp_ep_print_info(state_->endpoint, to); }));
}

void raw_peer::serve(const std::atomic<bool>& stop) {
  state_->is_server = true;
  for (unsigned turn = 1; !state_->left && !state_->failure && !stop; ++turn) {
    ucp_worker_progress(state_->worker.get());
    if (turn % turns_a_yield == 0) std::this_thread::yield();
  }
}

result<void> raw_peer::round_trips(int count) {
  auto& all = *state_;
  for (int i = 0; i < count; ++i) {
    const auto before = all.answered;
    all.send(ping, &all.pushed, sizeof all.pushed);
    if (auto heard = all.wait([&] { return all.answered != before; }); !heard) return heard;
  }
  return {};
}

result<void> raw_peer::push(std::size_t bytes, int count) {
  auto& all = *state_;
  all.data.resize(bytes);
  for (int i = 0; i < count; ++i) {
    if (auto room = all.wait([&all] { return all.in_flight < blocks_in_flight; }); !room)
      return room;
    all.send(block, all.data.data(), bytes);
    ++all.pushed;
  }
  return round_trips(1);
}

}  // namespace troupe::messages::ucx
