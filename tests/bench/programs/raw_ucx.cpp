#include "tests/bench/programs/raw_ucx.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "messages/link/door/address.hpp"
#include "tests/bench/programs/figures.hpp"

namespace troupe::bench {
namespace {

using namespace messages;

[[noreturn]] void stop_for(const std::string& text) {
  std::fprintf(stderr, "raw UCX: %s\n", text.c_str());
  std::_Exit(1);
}

template <class T>
T need(result<T> value) {
  if (!value) stop_for(value.error().text);
  return std::move(*value);
}

void need(ucs_status_t status, const char* what) {
  if (status != UCS_OK) stop_for(std::string(what) + ": " + ucs_status_string(status));
}

/// All that UCX has for this machine, or its tcp alone: no process here needs to outlive another.
ucx::context make_context(link_transport transport) {
  ucp_config_t* config = nullptr;
  need(ucp_config_read(nullptr, nullptr, &config), "read UCX's configuration");
  const bool is_tcp = transport == link_transport::tcp;
  need(ucp_config_modify(config, "TLS", is_tcp ? "tcp" : "tcp,sm"), "choose a transport");
  need(ucp_config_modify(config, "NET_DEVICES", "lo"), "keep to loopback");
  if (is_tcp) need(ucp_config_modify(config, "RNDV_SCHEME", "put_zcopy"), "choose a scheme");
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  ucp_context_h out = nullptr;
  need(ucp_init(&params, config, &out), "start UCX");
  ucp_config_release(config);
  return ucx::context(out);
}

struct listener_end {
  void operator()(ucp_listener* listener) const noexcept { ucp_listener_destroy(listener); }
};

}  // namespace

raw_ucx::raw_ucx(link_transport transport)
    : transport_(transport),
      context_(make_context(transport)),
      worker_(need(ucx::make_worker(context_.get()))) {
  handle<&raw_ucx::take_ping>(ping);
  handle<&raw_ucx::take_tensor>(tensor);
  handle<&raw_ucx::take_leave>(leave);
}

raw_ucx::~raw_ucx() {
  if (!is_server_ && endpoint_ != nullptr) send(leave, nullptr, 0);
  // The server has left when its socket closes; the worker is destroyed with what is left.
  for (int i = 0; i < 1000; ++i) progress();
}

template <ucs_status_t (raw_ucx::*Take)(void*, std::size_t, bool)>
ucs_status_t raw_ucx::handler(void* self, const void*, std::size_t, void* data, std::size_t bytes,
                              const ucp_am_recv_param_t* param) {
  const bool rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  return (static_cast<raw_ucx*>(self)->*Take)(data, bytes, rendezvous);
}

template <ucs_status_t (raw_ucx::*Take)(void*, std::size_t, bool)>
void raw_ucx::handle(message id) {
  ucp_am_handler_param_t params{};
  params.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                      UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  params.id = id;
  params.flags = UCP_AM_FLAG_WHOLE_MSG;
  params.cb = &raw_ucx::handler<Take>;
  params.arg = this;
  need(ucp_worker_set_am_recv_handler(worker_.get(), &params), "set a handler");
}

ucs_status_t raw_ucx::take_ping(void* data, std::size_t bytes, bool) {
  if (bytes != sizeof(number_)) stop_for("a ping of another size");
  if (!is_server_) return ++answered_, UCS_OK;
  std::memcpy(&number_, data, bytes);
  asked_ = true;
  answer_if_due();
  return UCS_OK;
}

void raw_ucx::answer_if_due() {
  if (!asked_ || tensors_ < number_) return;
  asked_ = false;
  send(ping, &number_, sizeof(number_));
}

ucs_status_t raw_ucx::take_tensor(void* data, std::size_t bytes, bool rendezvous) {
  if (buffers_.empty()) buffers_.resize(window);
  tensor_bytes& buffer = buffers_[started_++ % window];
  if (buffer.size() < bytes) buffer.resize(bytes);
  if (!rendezvous) {
    std::memcpy(buffer.data(), data, bytes);
    ++tensors_;
    return answer_if_due(), UCS_OK;
  }
  ucp_request_param_t params{};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  params.memory_type = UCS_MEMORY_TYPE_HOST;
  params.user_data = this;
  params.cb.recv_am = [](void* request, ucs_status_t status, std::size_t, void* self) {
    ucp_request_free(request);
    need(status, "receive a tensor");
    auto* const server = static_cast<raw_ucx*>(self);
    ++server->tensors_;
    server->answer_if_due();
  };
  const ucs_status_ptr_t request =
      ucp_am_recv_data_nbx(worker_.get(), data, buffer.data(), bytes, &params);
  if (UCS_PTR_IS_PTR(request)) return UCS_INPROGRESS;
  need(UCS_PTR_RAW_STATUS(request), "receive a tensor");
  ++tensors_;
  return answer_if_due(), UCS_OK;
}

ucs_status_t raw_ucx::take_leave(void*, std::size_t, bool) {
  left_ = true;
  return UCS_OK;
}

void raw_ucx::open(ucp_ep_params_t params) {
  params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
  params.err_mode =
      transport_ == link_transport::tcp ? UCP_ERR_HANDLING_MODE_PEER : UCP_ERR_HANDLING_MODE_NONE;
  params.err_handler = {
      [](void* self, ucp_ep_h, ucs_status_t) { static_cast<raw_ucx*>(self)->left_ = true; }, this};
  need(ucp_ep_create(worker_.get(), &params, &endpoint_), "create an endpoint");
}

void raw_ucx::serve(const std::function<void(const std::string&)>& bound) {
  is_server_ = true;
  const auto where = need(door::resolve("127.0.0.1:0", true));
  ucp_listener_params_t wanted{};
  wanted.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  wanted.sockaddr = {where.get(), where.length};
  wanted.conn_handler = {[](ucp_conn_request_h request, void* self) {
                           static_cast<raw_ucx*>(self)->request_ = request;
                         },
                         this};
  ucp_listener_h made = nullptr;
  need(ucp_listener_create(worker_.get(), &wanted, &made), "listen");
  const std::unique_ptr<ucp_listener, listener_end> listener(made);
  ucp_listener_attr_t attributes{};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  need(ucp_listener_query(made, &attributes), "say where it listens");
  bound(door::address{attributes.sockaddr, sizeof(attributes.sockaddr)}.text());
  while (request_ == nullptr) progress();
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
  params.conn_request = request_;
  open(params);
  while (!left_) progress();
}

void raw_ucx::connect(const std::string& address) {
  const auto where = need(door::resolve(address, false));
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr = {where.get(), where.length};
  open(params);
}

void raw_ucx::send(message id, const void* data, std::size_t bytes) {
  ucp_request_param_t params{};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = id == tensor ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER;
  params.user_data = this;
  params.cb.send = [](void* request, ucs_status_t status, void* self) {
    ucp_request_free(request);
    need(status, "send");
    --static_cast<raw_ucx*>(self)->in_flight_;
  };
  ++in_flight_;
  const ucs_status_ptr_t request = ucp_am_send_nbx(endpoint_, id, nullptr, 0, data, bytes, &params);
  if (UCS_PTR_IS_PTR(request)) return;
  need(UCS_PTR_RAW_STATUS(request), "send");
  --in_flight_;
}

double raw_ucx::round_trip_us(int count) {
  const stopwatch watch;
  for (int i = 0; i < count; ++i) {
    const std::uint64_t before = answered_;
    send(ping, &number_, sizeof(number_));
    while (answered_ == before) progress();
  }
  return watch.seconds() / count * 1e6;
}

double raw_ucx::megabytes_per_second(std::size_t bytes, int count) {
  const tensor_bytes data(bytes, std::byte{1});
  const stopwatch watch;
  for (int i = 0; i < count; ++i) {
    while (in_flight_ >= window) progress();
    send(tensor, data.data(), bytes);
    ++number_;
  }
  round_trip_us(1);  // answered when all are there
  return static_cast<double>(bytes) * count / watch.seconds() / 1e6;
}

}  // namespace troupe::bench
