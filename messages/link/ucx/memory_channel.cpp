#include "messages/link/ucx/memory_channel.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <list>
#include <optional>
#include <utility>

#include "messages/link/link_options.hpp"
#include "messages/link/ucx/handles.hpp"
#include "messages/link/ucx/version.hpp"

namespace troupe::messages::ucx {
namespace {

constexpr ucp_tag_t hello_tag = 1, block_tag = 2, every_bit = ~ucp_tag_t{0};
constexpr std::size_t longest_address = 4096;  // bytes

link_options options_for(memory_kind memory) {
  link_options options{.transport = link_transport::shm};
  options.settings.emplace_back(
      "TLS", memory == memory_kind::cuda ? "posix,cma,cuda_copy,cuda_ipc" : "posix,cma");
  return options;
}

error cannot_move(const std::string& why) {
  return {errc::transport_missing,
          fmt::format("UCX {} cannot move the memory of GPUs ({}); `./dev setup --cuda` installs "
                      "one that can, and docs/gpu.md says how a program is run with it",
                      library_version(), why)};
}

}  // namespace

result<std::shared_ptr<const library>> open_for(memory_kind memory) {
  auto opened =
      library::open(options_for(memory), {.features = UCP_FEATURE_TAG, .in_several_threads = true});
  if (memory == memory_kind::cuda && !opened)
    return tl::unexpected(cannot_move(opened.error().text));
  if (!opened) return tl::unexpected(opened.error());
  ucp_context_attr_t about{};
  about.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  const auto asked = ucp_context_query((*opened)->context(), &about);
  const bool knows_gpus =
      asked == UCS_OK && (about.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) != 0;
  if (memory == memory_kind::cuda && !knows_gpus)
    return tl::unexpected(cannot_move("it was built without CUDA, or finds no GPU"));
  return std::shared_ptr<const library>(std::move(*opened));
}

namespace {

struct channel_state {
  struct operation {
    channel_state* of = nullptr;
    std::size_t bytes = 0;
    bool receives = false;
    memory_channel::done ended = {};
    void* request = nullptr;
    std::list<operation>::iterator place = {};
  };

  memory_kind memory = memory_kind::host;
  std::shared_ptr<const library> of;
  ucx::worker worker;
  std::vector<std::byte> own_address;
  std::array<std::byte, longest_address> hello{};  // the receiver's address
  ucp_ep_h endpoint = nullptr;
  std::optional<error> failure;
  std::list<operation> under_way;
  operation* posting = nullptr;  // null again once it has ended, from within UCX's call
  bool is_leaving = false;       // what UCX ends now is told to nobody

  operation& add(std::size_t bytes, bool receives, memory_channel::done ended) {
    auto& made = under_way.emplace_back(operation{this, bytes, receives, std::move(ended)});
    made.place = std::prev(under_way.end());
    return made;
  }

  static void end(operation& which, const result<void>& how) {
    if (which.of->is_leaving) return;
    const auto ended = std::move(which.ended);
    if (which.of->posting == &which) which.of->posting = nullptr;
    which.of->under_way.erase(which.place);
    ended(how);
  }

  static void end(operation& which, ucs_status_t status) {
    if (status == UCS_OK) return end(which, result<void>());
    end(which, tl::unexpected(to_error(
                   status, which.receives ? "UCX receives nothing" : "UCX sends nothing")));
  }

  static void sent(void* request, ucs_status_t status, void* which) {
    ucp_request_free(request);
    end(*static_cast<operation*>(which), status);
  }

  static void received(void* request, ucs_status_t status, const ucp_tag_recv_info_t* about,
                       void* which) {
    ucp_request_free(request);
    auto& one = *static_cast<operation*>(which);
    if (status == UCS_ERR_MESSAGE_TRUNCATED || (status == UCS_OK && about->length != one.bytes))
      return end(one, fail(errc::bad_frame, fmt::format("the sender sent {} bytes for {}",
                                                        about->length, one.bytes)));
    end(one, status);
  }

  static void greeted(void* request, ucs_status_t status, const ucp_tag_recv_info_t* about,
                      void* self) {
    ucp_request_free(request);
    auto& own = *static_cast<channel_state*>(self);
    if (own.is_leaving) return;
    auto connected = status == UCS_OK
                         ? own.connect(std::span(own.hello).first(about->length))
                         : tl::unexpected(to_error(status, "UCX hears of no receiver"));
    if (!connected) own.failure = std::move(connected.error());
  }

  [[nodiscard]] ucs_memory_type_t type() const {
    return memory == memory_kind::cuda ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST;
  }

  void* post_send(ucp_tag_t tag, ucs_memory_type_t of_type, const void* from, std::size_t bytes,
                  ucp_send_nbx_callback_t told, void* whom) {
    ucp_request_param_t params{};
    params.op_attr_mask =
        UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    params.cb.send = told;
    params.user_data = whom;
    params.memory_type = of_type;
    return ucp_tag_send_nbx(endpoint, from, bytes, tag, &params);
  }

  void* post_receive(ucp_tag_t tag, ucs_memory_type_t of_type, void* to, std::size_t bytes,
                     ucp_tag_recv_nbx_callback_t told, void* whom) {
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                          UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
    params.cb.recv = told;
    params.user_data = whom;
    params.memory_type = of_type;
    return ucp_tag_recv_nbx(worker.get(), to, bytes, tag, every_bit, &params);
  }

  result<void> connect(std::span<const std::byte> address) {
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    params.address = reinterpret_cast<const ucp_address_t*>(address.data());
    const auto status = ucp_ep_create(worker.get(), &params, &endpoint);
    if (status == UCS_OK) return {};
    endpoint = nullptr;
    return tl::unexpected(
        to_error(status, "UCX cannot reach the other process", errc::address_unavailable));
  }
};

class ucx_channel final : public memory_channel {
 public:
  explicit ucx_channel(std::unique_ptr<channel_state> of) : state_(std::move(of)) {}
  ~ucx_channel() override {
    state_->is_leaving = true;
    state_->worker.reset();
  }

  [[nodiscard]] const std::vector<std::byte>& address() const noexcept override {
    return state_->own_address;
  }
  [[nodiscard]] result<void> reach(std::span<const std::byte> sender) override;
  [[nodiscard]] result<bool> is_reached() const override;
  void send(const void* from, std::size_t bytes, done ended) override;
  void receive(void* to, std::size_t bytes, done ended) override;
  void progress() override;
  void cancel_receives() override;
  [[nodiscard]] std::size_t receiving() const noexcept override;

 private:
  const std::unique_ptr<channel_state> state_;
};

}  // namespace

result<std::unique_ptr<memory_channel>> memory_channel::make(std::shared_ptr<const library> by,
                                                             memory_kind memory) {
  auto own = std::make_unique<channel_state>();
  own->memory = memory;
  own->of = std::move(by);
  auto made = make_worker(own->of->context());
  if (!made) return tl::unexpected(made.error());
  own->worker = std::move(*made);
  auto address = address_of(own->worker.get());
  if (!address) return tl::unexpected(address.error());
  own->own_address = std::move(*address);
  auto* const awaited = own->post_receive(hello_tag, UCS_MEMORY_TYPE_HOST, own->hello.data(),
                                          own->hello.size(), &channel_state::greeted, own.get());
  if (UCS_PTR_IS_ERR(awaited))
    return tl::unexpected(to_error(UCS_PTR_STATUS(awaited), "UCX awaits no receiver"));
  return std::make_unique<ucx_channel>(std::move(own));
}

result<void> ucx_channel::reach(std::span<const std::byte> sender) {
  auto& own = *state_;
  if (own.own_address.size() > longest_address)
    return fail(errc::address_unavailable, "UCX's own address is too long to be told");
  if (auto connected = own.connect(sender); !connected) return connected;
  const auto& address = own.own_address;
  auto& one = own.add(address.size(), false, [&own](const result<void>& how) {
    if (!how) own.failure = how.error();
  });
  auto* const request = own.post_send(hello_tag, UCS_MEMORY_TYPE_HOST, address.data(),
                                      address.size(), &channel_state::sent, &one);
  if (!UCS_PTR_IS_PTR(request)) channel_state::end(one, UCS_PTR_RAW_STATUS(request));
  return own.failure ? result<void>(tl::unexpected(*own.failure)) : result<void>();
}

result<bool> ucx_channel::is_reached() const {
  if (state_->failure) return tl::unexpected(*state_->failure);
  return state_->endpoint != nullptr;
}

void ucx_channel::send(const void* from, std::size_t bytes, done ended) {
  auto& own = *state_;
  auto& one = own.add(bytes, false, std::move(ended));
  auto* const request =
      own.post_send(block_tag, own.type(), from, bytes, &channel_state::sent, &one);
  if (!UCS_PTR_IS_PTR(request)) channel_state::end(one, UCS_PTR_RAW_STATUS(request));
}

void ucx_channel::receive(void* to, std::size_t bytes, done ended) {
  auto& own = *state_;
  auto& one = own.add(bytes, true, std::move(ended));
  own.posting = &one;
  auto* const request =
      own.post_receive(block_tag, own.type(), to, bytes, &channel_state::received, &one);
  if (std::exchange(own.posting, nullptr) == nullptr) return;
  if (UCS_PTR_IS_ERR(request)) return channel_state::end(one, UCS_PTR_STATUS(request));
  one.request = request;
}

void ucx_channel::progress() {
  while (ucp_worker_progress(state_->worker.get()) != 0) {
  }
}

void ucx_channel::cancel_receives() {
  std::vector<void*> requests;
  for (const auto& each : state_->under_way)
    if (each.receives) requests.push_back(each.request);
  for (auto* const each : requests) ucp_request_cancel(state_->worker.get(), each);
}

std::size_t ucx_channel::receiving() const noexcept {
  const auto& all = state_->under_way;
  return static_cast<std::size_t>(
      std::ranges::count_if(all, [](const auto& each) { return each.receives; }));
}

}  // namespace troupe::messages::ucx
