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

class ucx_channel final : public memory_channel {
 public:
  ucx_channel(std::shared_ptr<const library> by, memory_kind memory)
      : type_(memory == memory_kind::cuda ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST),
        of_(std::move(by)) {}
  ~ucx_channel() override {
    is_leaving_ = true;
    worker_.reset();
  }

  /// To be called before anything else. Errors: as of `make`.
  result<void> open() {
    auto made = make_worker(of_->context());
    if (!made) return tl::unexpected(made.error());
    worker_ = std::move(*made);
    auto address = address_of(worker_.get());
    if (!address) return tl::unexpected(address.error());
    own_address_ = std::move(*address);
    auto* const awaited = post_receive(hello_tag, UCS_MEMORY_TYPE_HOST, hello_.data(),
                                       hello_.size(), &ucx_channel::greeted, this);
    if (!UCS_PTR_IS_ERR(awaited)) return {};
    return tl::unexpected(to_error(UCS_PTR_STATUS(awaited), "UCX awaits no receiver"));
  }

  [[nodiscard]] const std::vector<std::byte>& address() const noexcept override {
    return own_address_;
  }

  [[nodiscard]] result<void> reach(std::span<const std::byte> sender) override {
    if (own_address_.size() > longest_address)
      return fail(errc::address_unavailable, "UCX's own address is too long to be told");
    if (auto connected = connect(sender); !connected) return connected;
    auto& one = add(own_address_.size(), false, [this](const result<void>& how) {
      if (!how) failure_ = how.error();
    });
    post_send(hello_tag, UCS_MEMORY_TYPE_HOST, own_address_.data(), one);
    return failure_ ? result<void>(tl::unexpected(*failure_)) : result<void>();
  }

  [[nodiscard]] result<bool> is_reached() const override {
    if (failure_) return tl::unexpected(*failure_);
    return endpoint_ != nullptr;
  }

  void send(const void* from, std::size_t bytes, done ended) override {
    post_send(block_tag, type_, from, add(bytes, false, std::move(ended)));
  }

  void receive(void* to, std::size_t bytes, done ended) override {
    auto& one = add(bytes, true, std::move(ended));
    posting_ = &one;
    auto* const request = post_receive(block_tag, type_, to, bytes, &ucx_channel::received, &one);
    if (std::exchange(posting_, nullptr) == nullptr) return;
    if (UCS_PTR_IS_ERR(request)) return end(one, UCS_PTR_STATUS(request));
    one.request = request;
  }

  void progress() override {
    while (ucp_worker_progress(worker_.get()) != 0) {
    }
  }

  void cancel_receives() override {
    std::vector<void*> requests;
    for (const auto& each : under_way_)
      if (each.receives) requests.push_back(each.request);
    for (auto* const each : requests) ucp_request_cancel(worker_.get(), each);
  }

  [[nodiscard]] std::size_t receiving() const noexcept override {
    return static_cast<std::size_t>(std::ranges::count_if(under_way_, &operation::receives));
  }

 private:
  struct operation {
    ucx_channel* of = nullptr;
    std::size_t bytes = 0;
    bool receives = false;
    done ended = {};
    void* request = nullptr;
    std::list<operation>::iterator place = {};
  };

  operation& add(std::size_t bytes, bool receives, done ended) {
    auto& made = under_way_.emplace_back(operation{this, bytes, receives, std::move(ended)});
    made.place = std::prev(under_way_.end());
    return made;
  }

  static void end(operation& which, const result<void>& how) {
    if (which.of->is_leaving_) return;
    const auto ended = std::move(which.ended);
    if (which.of->posting_ == &which) which.of->posting_ = nullptr;
    which.of->under_way_.erase(which.place);
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
    auto& own = *static_cast<ucx_channel*>(self);
    if (own.is_leaving_) return;
    auto connected = status == UCS_OK
                         ? own.connect(std::span(own.hello_).first(about->length))
                         : tl::unexpected(to_error(status, "UCX hears of no receiver"));
    if (!connected) own.failure_ = std::move(connected.error());
  }

  /// Sends what an operation is of, and ends it where that is done at once.
  void post_send(ucp_tag_t tag, ucs_memory_type_t of_type, const void* from, operation& one) {
    ucp_request_param_t params{};
    params.op_attr_mask =
        UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    params.cb.send = &ucx_channel::sent;
    params.user_data = &one;
    params.memory_type = of_type;
    auto* const request = ucp_tag_send_nbx(endpoint_, from, one.bytes, tag, &params);
    if (!UCS_PTR_IS_PTR(request)) end(one, UCS_PTR_RAW_STATUS(request));
  }

  void* post_receive(ucp_tag_t tag, ucs_memory_type_t of_type, void* to, std::size_t bytes,
                     ucp_tag_recv_nbx_callback_t told, void* whom) {
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                          UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
    params.cb.recv = told;
    params.user_data = whom;
    params.memory_type = of_type;
    return ucp_tag_recv_nbx(worker_.get(), to, bytes, tag, every_bit, &params);
  }

  result<void> connect(std::span<const std::byte> address) {
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    params.address = reinterpret_cast<const ucp_address_t*>(address.data());
    const auto status = ucp_ep_create(worker_.get(), &params, &endpoint_);
    if (status == UCS_OK) return {};
    endpoint_ = nullptr;
    return tl::unexpected(
        to_error(status, "UCX cannot reach the other process", errc::address_unavailable));
  }

  const ucs_memory_type_t type_;
  const std::shared_ptr<const library> of_;
  ucx::worker worker_;
  std::vector<std::byte> own_address_;
  std::array<std::byte, longest_address> hello_{};  // the receiver's address
  ucp_ep_h endpoint_ = nullptr;
  std::optional<error> failure_;
  std::list<operation> under_way_;
  operation* posting_ = nullptr;  // null again once it has ended, from within UCX's call
  bool is_leaving_ = false;       // what UCX ends now is told to nobody
};

}  // namespace

result<std::unique_ptr<memory_channel>> memory_channel::make(std::shared_ptr<const library> by,
                                                             memory_kind memory) {
  auto own = std::make_unique<ucx_channel>(std::move(by), memory);
  if (auto opened = own->open(); !opened) return tl::unexpected(opened.error());
  return own;
}

}  // namespace troupe::messages::ucx
