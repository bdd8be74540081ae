#include "apps/transformer_pipeline/application.hpp"

int main(int argc, char** argv) {
  return troupe::main(argc, argv, troupe::apps::transformer_application());
}
